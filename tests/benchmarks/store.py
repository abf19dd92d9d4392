"""Whether the store stays flat: ``python tests/benchmarks/store.py``, 200 batches of 256 rollouts, some minutes.

Prints the store's entries and the process's resident memory every 20 batches. Goal: after the fifth batch memory grows
by less than 10%, entries not at all.
"""

import asyncio
import logging
from typing import Any

import psutil  # type: ignore[import-untyped]
import structlog

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.compat import InMemoryLightningStore, LitAgent, ProxyLLM
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.runners.inline import InlineRunner

BATCHES, ROLLOUTS, SHOWN_EVERY = 200, 256, 20
FIRST_MEASURED = 5


class Rewarding(LitAgent[Any]):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Ends at once."""

    async def rollout_async(self, task: Any, resources: Any, rollout: Any) -> float:
        """The same in training and evaluation."""
        return 1.0


async def measure() -> None:
    """Plays the batches, each under a policy of its own."""
    store = InMemoryLightningStore(thread_safe=True)
    runner = InlineRunner(Rewarding(), store=store, capture=Capture(run_seed=0), timeout_seconds=60.0)
    first_bytes = 0
    for batch in range(BATCHES):
        resources = {"main_llm": ProxyLLM(endpoint="http://127.0.0.1:9/v1", model="policy")}
        resources_id = (await store.update_resources(f"policy-{batch}", resources)).resources_id
        keys = [RolloutKey(batch, "train", 0, member) for member in range(ROLLOUTS)]
        await asyncio.gather(*(runner.run(key, attempt=0, task="t", resources_id=resources_id) for key in keys))
        resident_bytes = psutil.Process().memory_info().rss
        if batch == FIRST_MEASURED:
            first_bytes = resident_bytes
        if batch == FIRST_MEASURED or batch % SHOWN_EVERY == SHOWN_EVERY - 1:
            shown = {name: count for name, count in (await store.statistics()).items() if name.startswith("total_")}
            growth = resident_bytes / first_bytes - 1 if first_bytes else 0.0
            print(f"batch {batch}: {resident_bytes / 2**20:.0f} MiB ({growth:+.1%}), {shown}")
    runner.close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    asyncio.run(measure())
