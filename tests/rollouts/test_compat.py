"""Each fix is still needed, and does what it is for: a test here that fails says which fix can go."""

import inspect
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import agentlightning as agl
import litellm
import pytest
from agentlightning.tracer import base as tracer_base
from litellm.litellm_core_utils import get_model_cost_map
from litellm.proxy import proxy_server
from litellm.proxy.shutdown.graceful_shutdown_manager import GracefulShutdownManager

from orchestrator.rollouts import compat
from orchestrator.rollouts.compat import LightningStoreClient
from orchestrator.rollouts.runners.store_client import StoreClient

LIFE_OF_A_GATEWAY = """
import asyncio, http.server, json, socket, sys, threading, time
from pathlib import Path
from orchestrator.errors import GatewayError
from orchestrator.rollouts import compat, gateway
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.provider import Policy, Provider
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

async def refused(port):
    began = time.monotonic()
    try:
        await gateway.Gateway(provider=provider, port=port).start()
    except GatewayError as error:
        return {"error": str(error), "seconds": time.monotonic() - began}

def listening(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

async def main():
    facts = {}
    foreign = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    port = facts["port"] = foreign.server_address[1]
    facts["held"] = await refused(port)
    claim, gateway._claimable_port = gateway._claimable_port, lambda port: port
    facts["taken_after_the_check"] = await refused(port)
    gateway._claimable_port = claim
    facts["requests_to_the_foreign_server"] = requests
    foreign.shutdown(); foreign.server_close()
    threads = {thread.name for thread in threading.enumerate()}
    facts["after_stop"] = []
    for _ in range(2):
        served = gateway.Gateway(provider=provider, port=port)
        await served.start()
        facts["address"] = served.address
        await served.stop()
        await served.stop()
        facts["after_stop"].append(listening(port))
    facts["threads_left"] = [
        thread.name for thread in threading.enumerate()
        if thread.name not in threads and not thread.name.startswith("asyncio_")
    ]
    facts["in_flight"] = await stop_with_a_call_in_flight(port)
    facts["hung"] = await hung_agents(port)
    Path(sys.argv[1]).write_text(json.dumps(facts))

async def stop_with_a_call_in_flight(port):
    client = FakeSamplingClient(lambda prompt, params: [5])
    client.hold()
    served = gateway.Gateway(provider=provider, port=port)
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

async def hung_agents(port):
    served = gateway.Gateway(provider=provider, port=port)
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
provider = Provider(renderer=get_renderer("qwen3_instruct", tokenizer), tokenizer=tokenizer, capture=capture)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A process of its own that meets a foreign server on its port, then starts and stops two gateways on it."""
    facts = tmp_path_factory.mktemp("life") / "facts.json"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM")}
    done = subprocess.run(
        [sys.executable, "-c", LIFE_OF_A_GATEWAY, str(facts), str(Path(__file__).parents[1])],
        capture_output=True,
        text=True,
        timeout=90,
        env=environment,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(facts.read_text()), "stdout": done.stdout, "stderr": done.stderr}


@pytest.mark.parametrize("case", ["held", "taken_after_the_check"])
def test_a_port_that_a_foreign_server_holds_is_refused_by_name_in_ten_seconds(life: dict[str, Any], case: str) -> None:
    assert str(life["port"]) in life[case]["error"]
    assert "gateway_port" in life[case]["error"]
    assert life[case]["seconds"] < 10


def test_nothing_is_sent_to_a_foreign_server(life: dict[str, Any]) -> None:
    assert life["requests_to_the_foreign_server"] == []


def test_a_stopped_gateway_leaves_no_port_and_no_thread_and_the_next_one_starts(life: dict[str, Any]) -> None:
    assert life["address"] == f"http://127.0.0.1:{life['port']}"
    assert life["after_stop"] == [False, False]
    assert life["threads_left"] == []


def test_a_gateway_that_stops_waits_for_no_call_in_flight(life: dict[str, Any]) -> None:
    assert life["in_flight"]["status"] == 503
    assert life["in_flight"]["seconds"] < 3
    assert not life["in_flight"]["listening"]


def test_agents_that_never_return_do_not_keep_the_process_alive(life: dict[str, Any]) -> None:
    assert life["hung"] == ["timed_out", "timed_out"]


def test_nothing_is_printed_on_stdout(life: dict[str, Any]) -> None:
    assert life["stdout"] == ""
    assert "sk-" not in life["stderr"]


def test_litellm_still_reads_a_price_list_from_the_network_unless_told_not_to() -> None:
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert "LITELLM_LOCAL_MODEL_COST_MAP" in inspect.getsource(get_model_cost_map)
    assert litellm.model_cost_map_url.startswith("https://")


def test_litellm_still_prints_when_its_proxy_starts() -> None:
    assert "show_banner()" in inspect.getsource(proxy_server.initialize)
    assert "print(" in inspect.getsource(proxy_server.ProxyConfig.load_config)


def test_litellm_still_remembers_a_shutdown_for_the_whole_process() -> None:
    GracefulShutdownManager.start_shutdown()
    assert GracefulShutdownManager.is_shutting_down()
    compat.allow_restart()
    assert not GracefulShutdownManager.is_shutting_down()


def test_the_proxy_still_takes_its_key_from_the_environment() -> None:
    assert "LITELLM_MASTER_KEY" in inspect.getsource(proxy_server)


def test_agentlightning_still_has_one_tracer_a_process() -> None:
    assert "global _active_tracer" in inspect.getsource(tracer_base.set_active_tracer)
    assert compat.install_tracer() is compat.install_tracer()


def test_a_reward_emitted_where_no_rollout_runs_is_an_error() -> None:
    compat.install_tracer()
    errors: list[str] = []

    def emit() -> None:
        try:
            agl.emit_reward(1.0)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=emit)  # a thread begins with an empty context
    thread.start()
    thread.join()
    assert "where no rollout runs" in errors[0]


async def test_the_store_still_keeps_finished_rollouts_unless_they_are_forgotten() -> None:
    store = compat.InMemoryLightningStore(thread_safe=True)
    rollouts = [await store.start_rollout(input=number) for number in range(2)]
    for rollout in rollouts:
        await store.add_span(
            agl.Span.from_core_fields(
                agl.emit_reward(1.0, propagate=False),
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=1,
            )
        )
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    assert len(await store.query_rollouts()) == 2
    await compat.forget_rollout(store, rollouts[0].rollout_id)
    await compat.forget_rollout(store, "unknown")
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == [rollouts[1].rollout_id]
    assert len(await store.query_spans(rollouts[1].rollout_id)) == 1
    assert len(store.collections.spans._items) == len(store.collections.attempts._items) == 1
    assert len(store._start_time_by_rollout) == len(store._completion_events) == len(store._span_bytes_by_rollout) == 1
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_attempts"], statistics["total_spans"]) == (1, 1, 1)


def test_a_store_over_http_still_claims_to_take_spans_that_it_loses() -> None:
    needed = LightningStoreClient("http://127.0.0.1:1").capabilities
    assert needed["otlp_traces"], "see whether tests/rollouts/test_store_server.py passes without the fix"
    ours = StoreClient("http://127.0.0.1:1", key="k", agent="a:b").capabilities
    assert ours == {**needed, "otlp_traces": False}


async def test_the_store_keeps_resources_and_workers_until_they_are_forgotten() -> None:
    store = compat.InMemoryLightningStore(thread_safe=True)
    for name in ("old", "new"):
        await store.update_resources(name, {"main_llm": agl.LLM(endpoint="http://127.0.0.1:1", model="m")})
        await store.update_worker(name)
    assert [kept.resources_id for kept in await store.query_resources()] == ["old", "new"]
    for name in ("old", "unknown"):
        await compat.forget_resources(store, name)
        await compat.forget_worker(store, name)
    assert [kept.resources_id for kept in await store.query_resources()] == ["new"]
    assert [kept.worker_id for kept in await store.query_workers()] == ["new"]
