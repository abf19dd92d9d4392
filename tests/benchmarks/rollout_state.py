"""The Rollout state of 64 rollouts of 0.1 s that call no model, against a loop that polls every rollout each 5 s.

Both run the same attempts in the same store; the loop starts them all, and asks for each one's status every 5 s until
none is left, as the reference does. What calls to the model cost is the gateway's benchmark.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from benchmarks.children import forked
from benchmarks.rows import Row, compared

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.compat import InMemoryLightningStore, LitAgent, ProxyLLM
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.runners.inline import InlineRunner

ROLLOUTS, GROUP_SIZE, WAIT_SECONDS, POLL_SECONDS, ROUNDS = 64, 4, 0.1, 5.0, 5


class Waiting(LitAgent[Any]):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Waits, as for a tool."""

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        """The same in training and evaluation."""
        await asyncio.sleep(WAIT_SECONDS)
        return 1.0


def measure(folder: Path) -> list[Row]:
    """One row."""
    ours, theirs = forked(folder / "output.txt", _rounds, folder)
    name = f"Rollout state, {ROLLOUTS} x {WAIT_SECONDS} s"
    return [compared(name, "s", ours, theirs, "theirs/ours", ratio_at_least=5, ours_at_most=1)]


def _rounds(folder: Path) -> tuple[list[float], list[float]]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    ours, theirs = [], []
    for number in range(ROUNDS):
        ours.append(asyncio.run(_timed(partial(_collected, path=folder / f"{number}.jsonl"))))
        theirs.append(asyncio.run(_timed(_polled)))
    return ours, theirs


async def _timed(play: Callable[[InlineRunner], Coroutine[Any, Any, None]]) -> float:
    store = InMemoryLightningStore(thread_safe=True)
    await store.update_resources("policy", {"main_llm": ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="policy")})
    runner = InlineRunner(Waiting(), store=store, capture=Capture(run_seed=0), timeout_seconds=60.0)
    began = time.perf_counter()
    await play(runner)
    seconds = time.perf_counter() - began
    runner.close()
    return seconds


async def _collected(runner: InlineRunner, path: Path) -> None:
    """As a state's body does, each rollout stored as it finishes."""
    collector = Collector(runner, concurrency=ROLLOUTS, max_retries=0, on_failure="drop_member", decode=str)
    await collector.collect(
        batch=0,
        mode="train",
        tasks=["t"] * (ROLLOUTS // GROUP_SIZE),
        group_size=GROUP_SIZE,
        resources_id="policy",
        path=path,
        stop=asyncio.Event(),
        on_progress=lambda _: None,
    )


async def _polled(runner: InlineRunner) -> None:
    """As the reference does: nothing is stored either, which would cost it more."""
    keys = [RolloutKey(0, "train", number // GROUP_SIZE, number % GROUP_SIZE) for number in range(ROLLOUTS)]
    playing = [asyncio.create_task(runner.run(key, attempt=0, task="t", resources_id="policy")) for key in keys]
    while not all(task.done() for task in playing):  # noqa: ASYNC110 - polling is what is measured
        await asyncio.sleep(POLL_SECONDS)
