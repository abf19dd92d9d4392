"""What the store holds does not grow with the number of batches, wherever the agents run."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import agentlightning as agl

from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.compat import InMemoryLightningStore
from orchestrator.rollouts.outcomes import Outcome, RolloutKey
from orchestrator.rollouts.runners.claims import Claims
from orchestrator.rollouts.runners.inline import InlineRunner
from orchestrator.rollouts.runners.queued import QueuedRunner
from orchestrator.rollouts.runners.store_client import StoreClient
from orchestrator.rollouts.runners.store_server import StoreServer

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
MEMBERS = 4
KEY, AGENT = "k" * 32, "a:b"


@rollout_agent
async def rewarded(task: Any, llm: agl.LLM) -> float:
    return 1.0


async def entries(store: InMemoryLightningStore) -> dict[str, int]:
    """Everything in the store that can grow."""
    statistics = await store.statistics()
    indexes = ("_completion_events", "_start_time_by_rollout", "_span_bytes_by_rollout", "_running_rollout_ids")
    return {
        **{name: count for name, count in statistics.items() if name.startswith("total_")},
        **{name: len(getattr(store, name)) for name in indexes},
        "branches": len(store.collections.attempts._items) + len(store.collections.spans._items),
        "sequence_ids": len(store.collections.span_sequence_ids._values),
        "queue": await store.collections.rollout_queue.size(),
    }


async def play(runner: Any, store: InMemoryLightningStore, *, batches: int) -> list[dict[str, int]]:
    """What the store holds after each of ``batches``, each under a policy of its own."""
    held = []
    for batch in range(batches):
        resources = {"main_llm": agl.LLM(endpoint="http://127.0.0.1:9/v1", model="policy")}
        resources_id = (await store.update_resources(f"policy-{batch}", resources)).resources_id
        keys = [RolloutKey(batch, "train", 0, member) for member in range(MEMBERS)]
        results = await asyncio.gather(
            *(runner.run(key, attempt=0, task="t", resources_id=resources_id) for key in keys)
        )
        assert {(result.outcome, result.reward) for result in results} == {(Outcome.EMPTY, 1.0)}
        held.append(await entries(store))
    return held


def assert_flat(held: list[dict[str, int]]) -> None:
    assert held[-1] == held[2]
    assert max(held[-1]["total_rollouts"], held[-1]["total_resources"]) <= 2 * MEMBERS


@asynccontextmanager
async def worked(capture: Any, *, num_workers: int) -> AsyncIterator[tuple[QueuedRunner, InMemoryLightningStore]]:
    """A queue whose rollouts are ended by workers over HTTP that do nothing else."""
    store = InMemoryLightningStore(thread_safe=True)
    claims = Claims(capture, lost_seconds=30.0)
    server = StoreServer(store, claims, host="127.0.0.1", port=0, key=KEY, agent=AGENT)
    await server.start()
    client = StoreClient(server.address, key=KEY, agent=AGENT)

    async def work(worker_id: str) -> None:
        while True:
            rollout = await client.dequeue_rollout(worker_id)
            if rollout is not None:
                ids = (rollout.rollout_id, rollout.attempt.attempt_id)
                await client.get_next_span_sequence_id(*ids)
                await client.report(*ids, Report(1.0, None, None))
                await client.update_attempt(*ids, status="succeeded")

    workers = [asyncio.create_task(work(f"w{number}")) for number in range(num_workers)]
    try:
        yield QueuedRunner(store=store, claims=claims, timeout_seconds=30.0), store
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await client.close()
        await server.stop()


async def test_the_store_stays_flat_when_agents_run_in_this_process(gateway_process: Any) -> None:
    store = InMemoryLightningStore(thread_safe=True)
    runner = InlineRunner(rewarded, store=store, capture=gateway_process.capture, timeout_seconds=30.0)
    assert_flat(await play(runner, store, batches=30))
    runner.close()


async def test_the_store_stays_flat_when_workers_come_and_go(gateway_process: Any) -> None:
    async with worked(gateway_process.capture, num_workers=2) as (runner, store):
        assert_flat(await play(runner, store, batches=10))
