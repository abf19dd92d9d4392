"""How gateways begin and end: on a port of their own, leaving nothing behind, and waiting for nobody."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

KINDS = ("slim", "llm_proxy")
LIFE_OF_A_GATEWAY = """
import asyncio, http.server, json, socket, sys, threading, time
from pathlib import Path
from orchestrator.errors import GatewayError
from orchestrator.rollouts import gateway
from orchestrator.rollouts.gateway import llm_proxy
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.provider import Policy, Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import SamplingDefaults
from orchestrator.rollouts.runners.inline import InlineRunner
from orchestrator.testing import FakeSamplingClient
import agentlightning as agl
import httpx
import structlog
from tinker_cookbook.renderers import get_renderer
sys.path.insert(0, sys.argv[2])
from rollouts.characters import character_tokenizer

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
requests = []

class Foreign(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        requests.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": []}')
    do_POST = do_GET

async def refused(kind, port):
    began = time.monotonic()
    try:
        await gateway.Gateway(provider=provider, kind=kind, port=port).start()
    except GatewayError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}

def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

async def life(kind):
    facts = {}
    foreign = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    port = facts["port"] = foreign.server_address[1]
    facts["held"] = await refused(kind, port)
    if kind == "llm_proxy":
        claim, llm_proxy._claimable = llm_proxy._claimable, lambda binding: binding
        facts["taken_after_the_check"] = await refused(kind, port)
        llm_proxy._claimable = claim
    foreign.shutdown(); foreign.server_close()
    threads = {thread.name for thread in threading.enumerate()}
    facts["after_stop"] = []
    served = gateway.Gateway(provider=provider, kind=kind, port=port)
    for _ in range(2):
        await served.start()
        facts["address"] = served.address
        await served.stop()
        await served.stop()
        facts["after_stop"].append(listening(port))
    facts["threads_left"] = [
        thread.name for thread in threading.enumerate()
        if thread.name not in threads and not thread.name.startswith("asyncio_")
    ]
    facts["in_flight"] = await stop_with_a_call_in_flight(kind, port)
    return facts

async def main():
    facts = {kind: await life(kind) for kind in ("slim", "llm_proxy")}
    facts["requests_to_foreign_servers"] = requests
    facts["hung"] = await hung_agents()
    Path(sys.argv[1]).write_text(json.dumps(facts))

async def stop_with_a_call_in_flight(kind, port):
    client = FakeSamplingClient(lambda prompt, params: [5])
    client.hold()
    served = gateway.Gateway(provider=provider, kind=kind, port=port)
    await served.start()
    await served.publish(Policy(client, 0, SamplingDefaults(4), SamplingDefaults(4)))
    capture.register("ro", "at", RolloutKey(0, "train", 0, 0), 0)
    call = asyncio.create_task(asyncio.to_thread(
        httpx.post,
        f"{served.address}/rollout/ro/attempt/at/v1/chat/completions",
        headers={"Authorization": f"Bearer {served.key}"},
        json={"model": "policy", "messages": [{"role": "user", "content": "x"}]},
        timeout=30,
    ))
    await asyncio.to_thread(client.arrived.get)
    began = time.monotonic()
    await served.stop()
    return {"seconds": time.monotonic() - began, "status": (await call).status_code, "listening": listening(port)}

async def hung_agents():
    served = gateway.Gateway(provider=provider)
    resources_id = (await served.store.add_resources(served.resources())).resources_id
    never = threading.Event()

    @agl.rollout
    def hung(task, llm):
        never.wait()

    @agl.rollout
    async def hung_async(task, llm):
        never.wait()

    outcomes = []
    for agent in (hung, hung_async):
        runner = InlineRunner(agent, store=served.store, capture=capture, timeout_seconds=0.1)
        result = await runner.run(RolloutKey(0, "train", 0, 0), attempt=0, task=0, resources_id=resources_id)
        runner.close()
        outcomes.append(result.outcome)
    return outcomes

capture = Capture(run_seed=0)
tokenizer = character_tokenizer()
provider = Provider(rendering=Rendering(get_renderer("qwen3_instruct", tokenizer), tokenizer), capture=capture)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A process of its own that meets a foreign server on its port, then starts and stops gateways on it."""
    facts = tmp_path_factory.mktemp("life") / "facts.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    done = subprocess.run(
        [sys.executable, "-c", LIFE_OF_A_GATEWAY, str(facts), str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(facts.read_text()), "stdout": done.stdout, "stderr": done.stderr}


@pytest.fixture(params=KINDS)
def one(life: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    """The life of one kind of gateway."""
    return life[request.param]


def test_a_port_that_a_foreign_server_holds_is_refused_by_name_in_ten_seconds(life: dict[str, Any]) -> None:
    """H13."""
    for kind, case in (("slim", "held"), ("llm_proxy", "held"), ("llm_proxy", "taken_after_the_check")):
        assert str(life[kind]["port"]) in life[kind][case]["error"]
        assert "gateway_port" in life[kind][case]["error"]
        assert life[kind][case]["seconds"] < 10


def test_nothing_is_sent_to_a_foreign_server(life: dict[str, Any]) -> None:
    """H13."""
    assert life["requests_to_foreign_servers"] == []


def test_a_stopped_gateway_leaves_no_port_and_no_thread_and_starts_again(one: dict[str, Any]) -> None:
    assert one["address"] == f"http://127.0.0.1:{one['port']}"
    assert one["after_stop"] == [False, False]
    assert one["threads_left"] == []


def test_a_gateway_that_stops_waits_for_no_call_in_flight(one: dict[str, Any]) -> None:
    assert one["in_flight"]["status"] == 503
    assert one["in_flight"]["seconds"] < 3
    assert not one["in_flight"]["listening"]


def test_the_slim_gateway_answers_calls_in_flight_within_a_second_of_its_stop(life: dict[str, Any]) -> None:
    assert life["slim"]["in_flight"]["seconds"] < 1


def test_agents_that_never_return_do_not_keep_the_process_alive(life: dict[str, Any]) -> None:
    assert life["hung"] == ["timed_out", "timed_out"]


def test_nothing_is_printed_on_stdout(life: dict[str, Any]) -> None:
    assert life["stdout"] == ""
    assert "sk-" not in life["stderr"]
