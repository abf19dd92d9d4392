"""The reference's way of working, rebuilt from our own parts: a proxy restart a batch, and rollouts polled every 5 s.

Rollouts go through Agent-lightning's proxy, which is stopped and started anew for each batch's weights, and are seen to
be finished only at a poll; a checkpoint is saved each ``save_every``, as ever.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import our_run

from orchestrator import compose
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.rollouts.provider import Policy

POLL_SECONDS = 5.0


class RestartedGateway(Gateway):
    """Serves each policy by a proxy of its own."""

    async def publish(self, policy: Policy) -> str:
        """Stops the proxy, starts another; their ``restart`` does not come back healthy."""
        await self.stop()
        await self.start()
        return await super().publish(policy)


class PolledCollector(Collector):
    """Looks every ``POLL_SECONDS`` whether all rollouts are finished."""

    async def collect(self, **arguments: Any) -> list[StoredRollout]:
        """As ever, but noticed at the next poll."""
        began = time.monotonic()
        rollouts = await super().collect(**arguments)
        await asyncio.sleep(POLL_SECONDS - (time.monotonic() - began) % POLL_SECONDS)
        return rollouts


def run(settings: Sequence[str], folder: Path) -> our_run.Measured:
    """A whole run in the reference's way."""
    # Runs have no option for what nobody should want.
    for name, part in (("Gateway", RestartedGateway), ("Collector", PolledCollector)):
        setattr(compose, name, part)
    return our_run.run([*settings, "gateway=llm_proxy"], folder)
