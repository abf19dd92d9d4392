"""How fast rollouts go: ``python tests/benchmarks/collect.py``, on a machine with nothing else to do.

Prints, for inline runners: 2,000 rollouts of an agent that waits 0.1 s and never calls the model, 512 at once, with the
event loop's lag; and 64 such rollouts, a small batch. Goals: under 10 s with a lag p99 under 250 ms, and under 1 s.
What calls to the model cost is the gateway's benchmark.
"""

import asyncio
import logging
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import structlog

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.compat import InMemoryLightningStore, LitAgent, ProxyLLM
from orchestrator.rollouts.runners.inline import InlineRunner

WAIT_SECONDS = 0.1
TICK_SECONDS = 0.005


class Waiting(LitAgent[Any]):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Waits, as for a tool."""

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        """The same in training and evaluation."""
        await asyncio.sleep(WAIT_SECONDS)
        return 1.0


async def lag(samples: list[float]) -> None:
    """Adds to ``samples`` how much later than asked the event loop came back, in seconds."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK_SECONDS)
        samples.append(time.perf_counter() - began - TICK_SECONDS)


async def play(num_rollouts: int, *, concurrency: int) -> None:
    """One state of ``num_rollouts`` rollouts, stored as a run stores them."""
    store = InMemoryLightningStore(thread_safe=True)
    await store.update_resources("policy", {"main_llm": ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="policy")})
    runner = InlineRunner(Waiting(), store=store, capture=Capture(run_seed=0), timeout_seconds=60.0)
    collector = Collector(runner, concurrency=concurrency, max_retries=0, on_failure="drop_member", decode=str)
    samples: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        measuring = asyncio.create_task(lag(samples))
        began, cpu_began = time.perf_counter(), time.process_time()
        await collector.collect(
            batch=0,
            mode="train",
            tasks=["t"] * (num_rollouts // 4),
            group_size=4,
            resources_id="policy",
            path=Path(folder) / "rollouts.jsonl",
            stop=asyncio.Event(),
            on_progress=lambda _: None,
        )
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
        measuring.cancel()
    runner.close()
    p99 = quantiles(samples, n=100)[98] * 1000
    print(
        f"{num_rollouts} rollouts, {concurrency} at once: {seconds:.2f} s ({cpu_seconds:.2f} s of processor), "
        f"loop lag p99 {p99:.0f} ms, most {max(samples) * 1000:.0f} ms"
    )


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    for _ in range(2):
        asyncio.run(play(64, concurrency=64))
        asyncio.run(play(2000, concurrency=512))
