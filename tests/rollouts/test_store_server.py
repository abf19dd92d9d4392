"""Laws of the store's server: nothing without the key, nothing for the dead, and no reward is lost on the way."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from multiprocessing import connection
from typing import Any

import agentlightning as agl
import httpx
import pytest
import structlog
from processes import fork_context

from orchestrator.errors import GatewayError
from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.compat import InMemoryLightningStore, WorkerTracer, emit_reward
from orchestrator.rollouts.outcomes import Outcome, RolloutKey
from orchestrator.rollouts.runners.claims import Claims
from orchestrator.rollouts.runners.placements import telling_the_end
from orchestrator.rollouts.runners.queued import MAX_LOST_WORKERS, QueuedRunner
from orchestrator.rollouts.runners.store_client import StoreClient
from orchestrator.rollouts.runners.store_server import StoreServer

STORE_KEY, AGENT = "k" * 32, "größe:agent"  # a name that no header can hold as it is
KEY = RolloutKey(0, "train", 0, 0)


class Served:
    """A store on HTTP, the runner that puts rollouts into it, and clients as workers have them."""

    def __init__(self) -> None:
        self.store = InMemoryLightningStore(thread_safe=True)
        self.capture = Capture(run_seed=7)
        self.claims = Claims(self.capture, lost_seconds=0.5)
        self.server = StoreServer(self.store, self.claims, host="127.0.0.1", port=0, key=STORE_KEY, agent=AGENT)
        self.runner = QueuedRunner(store=self.store, claims=self.claims, timeout_seconds=300.0)
        self.client = StoreClient("http://127.0.0.1:1", key=STORE_KEY, agent=AGENT)

    def play(self) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.runner.run(KEY, attempt=0, task="t", resources_id="policy"))

    async def take(self, worker_id: str) -> tuple[str, str]:
        rollout = await self.client.dequeue_rollout(worker_id)
        assert rollout is not None
        return rollout.rollout_id, rollout.attempt.attempt_id

    async def end(self, ids: tuple[str, str], reward: float = 1.0) -> None:
        await self.client.report(*ids, Report(reward, None, None))
        await self.client.update_attempt(*ids, status="succeeded")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start()
    served.client = StoreClient(served.server.address, key=STORE_KEY, agent=AGENT)
    await served.store.update_resources("policy", {"main_llm": agl.LLM(endpoint="http://127.0.0.1:9", model="m")})
    yield served
    await served.client.close()
    await served.server.stop()


async def test_no_route_answers_without_the_key(served: Served) -> None:
    paths = {*served.server._routes.app.openapi()["paths"], "/", "/docs", "/openapi.json", "/assets/index.js"}
    assert {"/v1/traces", "/v1/agl/health"} < paths
    async with httpx.AsyncClient(base_url=served.server.address, trust_env=False) as client:
        for path in sorted(paths):
            assert (await client.get(path)).status_code == 401, path
            assert (await client.post(path, headers={"Authorization": "Bearer wrong"})).status_code == 401, path
        assert (await client.get("/v1/agl/health", headers={"Authorization": STORE_KEY})).status_code == 401


async def test_a_port_that_is_held_is_named_at_once(served: Served) -> None:
    port = int(served.server.address.rpartition(":")[2])
    other = StoreServer(served.store, served.claims, host="127.0.0.1", port=port, key=STORE_KEY, agent=AGENT)
    with pytest.raises(GatewayError, match=f"store_port={port}"):
        await other.start()


async def test_a_worker_that_went_away_while_it_waited_is_given_nothing(served: Served) -> None:
    body = b'{"limit":1,"worker_id":"dead"}'
    head = "POST /v1/agl/queues/rollouts/dequeue HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    keys = f"Authorization: Bearer {STORE_KEY}\r\nx-orchestrator-agent: {AGENT}\r\nContent-Length: {len(body)}\r\n\r\n"
    port = int(served.server.address.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((head + keys).encode() + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    playing = served.play()
    await served.end(await served.take("alive"))
    assert (await playing).outcome is Outcome.EMPTY
    assert "dead" not in [worker.worker_id for worker in await served.store.query_workers()]


@pytest.mark.parametrize(("error", "told"), [(None, "the run has finished"), (ValueError(), "the run has stopped")])
async def test_workers_are_told_how_a_run_ended_and_silence_after_that_is_no_news(
    error: Exception | None, told: str, served: Served
) -> None:
    with structlog.testing.capture_logs() as logged:
        with contextlib.suppress(ValueError), telling_the_end(served.claims):
            if error is not None:
                raise error
        assert await served.client.dequeue_rollout("idle") is None
        await served.server.stop()
        assert await served.client.dequeue_rollout("idle") is None
    (why,) = [entry["why"] for entry in logged if entry["event"] == "the store has no work"]
    assert why.startswith(told)


async def test_a_run_that_dies_is_told_from_one_that_ends(served: Served) -> None:
    await served.server.stop()
    with structlog.testing.capture_logs() as logged:
        assert await served.client.dequeue_rollout("idle") is None
    assert [entry["why"].partition(" (")[0] for entry in logged] == ["it does not answer"]


async def test_what_a_replaced_worker_says_changes_nothing(served: Served) -> None:
    playing = served.play()
    replaced = await served.take("silent")
    ids = await served.take("second")
    assert served.capture.key_of(*replaced) is None, "its calls are refused"
    await served.client.report(*replaced, Report(-7.0, None, None))
    with pytest.raises(Exception, match="404"):
        await served.client.update_attempt(*replaced, status="succeeded")
    assert served.capture.key_of(*ids) == KEY
    await served.end(ids, reward=0.5)
    assert (await playing).reward == 0.5


async def test_a_worker_that_beats_is_not_lost_however_long_it_plays(served: Served) -> None:
    playing = served.play()
    ids = await served.take("slow")
    silent_after = asyncio.get_running_loop().time() + 3 * served.claims.lost_seconds
    while asyncio.get_running_loop().time() < silent_after:
        await served.client.update_worker("slow", {"cpu": 1})
    await served.end(ids)
    assert (await playing).reward == 1.0


async def test_a_run_that_was_frozen_hears_its_workers_before_it_takes_them_for_dead(served: Served) -> None:
    """As by Ctrl-Z, a paused machine, or an agent that blocks the event loop."""
    playing = served.play()
    ids = await served.take("alive")
    time.sleep(2 * served.claims.lost_seconds)  # noqa: ASYNC251 - it is the freeze
    await asyncio.sleep(0)
    await served.client.update_worker("alive", {"cpu": 1})
    await served.end(ids)
    assert (await playing).reward == 1.0


async def test_an_end_without_a_report_is_a_loss_and_losses_are_bounded(served: Served) -> None:
    playing = served.play()
    for _ in range(MAX_LOST_WORKERS):
        ids = await served.take("mute")
        with pytest.raises(Exception, match="404"):
            await served.client.update_attempt(*ids, status="failed")
    result = await playing
    assert (result.outcome, result.turns) == (Outcome.FAILED, ())
    assert "ended without saying how" in str(result.error)


async def test_an_abandoned_rollout_is_given_to_nobody(served: Served) -> None:
    waiting = served.play()
    await served.claims.work.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    playing = served.play()
    await served.end(await served.take("worker"))
    assert (await playing).reward == 1.0
    assert await served.store.dequeue_rollout() is None


def emit(address: str, rollout_id: str, attempt_id: str) -> None:
    """In a process of its own, as a worker: Agent-lightning's tracer is one a process."""

    async def trace() -> None:
        client, tracer = StoreClient(address, key=STORE_KEY, agent=AGENT), WorkerTracer()
        tracer.init()
        tracer.init_worker(0, client)
        async with tracer.trace_context(name="r", rollout_id=rollout_id, attempt_id=attempt_id):
            tracer.send_rewards_to(lambda _: None)
            emit_reward(0.25)
            emit_reward(0.75)
        await client.close()

    asyncio.run(trace())


async def test_a_reward_that_a_worker_emits_is_a_span_in_the_store(served: Served) -> None:
    served.claims.lost_seconds = 600.0  # the first child of the server waits for its imports
    playing = served.play()
    ids = await served.take("tracing")
    process = fork_context().Process(target=emit, args=(served.server.address, *ids), daemon=True)
    await asyncio.to_thread(process.start)
    await asyncio.to_thread(connection.wait, [process.sentinel])
    spans = await served.store.query_spans(ids[0])
    assert [span.attributes["agentlightning.reward.0.value"] for span in spans] == [0.25, 0.75]
    await served.end(ids)
    await playing
