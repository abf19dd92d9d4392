"""Runs attempts in whatever workers take them from the store's queue, and says how every attempt ended."""

import asyncio
from typing import Any

import structlog

from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import AttemptResult, Report, judge
from orchestrator.rollouts.capture import ROLLOUT_KEY_HEADER
from orchestrator.rollouts.compat import InMemoryLightningStore, RolloutConfig
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, Turn
from orchestrator.rollouts.runners.claims import Claim, Claims, Lost
from orchestrator.rollouts.runners.remembered import Remembered

log = structlog.get_logger(__name__)

MAX_LOST_WORKERS = 3
"""A rollout that loses so many workers is likely what kills them."""


class QueuedRunner:
    """Puts attempts into the store's queue and waits for the worker that takes each.

    ``rollout_timeout_seconds`` counts from the moment a worker takes the attempt, so waiting for a free worker costs no
    agent its time. A worker that dies on the way is no failure of the agent: the same attempt is played again from its
    start, with the same seeds, as it is when the run itself is killed. Only an attempt that loses
    ``MAX_LOST_WORKERS`` workers is ``failed``.
    """

    def __init__(
        self,
        *,
        store: InMemoryLightningStore,
        claims: Claims,
        timeout_seconds: float,
        spans: SpanTurns | None = None,
    ) -> None:
        """``claims`` is where the server of ``store`` tells what workers do; ``spans`` as of ``InlineRunner``."""
        self._store = store
        self._claims = claims
        self._timeout_seconds = timeout_seconds
        self._spans = spans
        self._remembered = Remembered(store)

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt; ``attempt`` is 0-based.

        Raises:
            LookupError: the store holds no resources under ``resources_id``.
            OrchestratorError: no worker can be started.
        """
        if await self._store.get_resources_by_id(resources_id) is None:
            raise LookupError(
                f"rollout {key}: the store holds no resources {resources_id!r}; publish before rolling out"
            )
        with self._claims.awaiting(key, attempt):
            rollout = await self._store.enqueue_rollout(
                input=task,
                mode="train" if key.mode == "train" else "val",
                resources_id=resources_id,
                config=RolloutConfig(
                    timeout_seconds=self._timeout_seconds,
                    max_attempts=1 + MAX_LOST_WORKERS,
                    retry_condition=["unresponsive"],
                ),
                metadata={
                    "rollout_key": str(key),
                    "attempt": attempt,
                    ROLLOUT_KEY_HEADER: self._claims.capture.rollout_key(key, attempt),
                },
            )
            try:
                result = await self._play(rollout.rollout_id, key)
            except BaseException:  # abandoned: nobody must take it from the queue any more
                await self._store.update_rollout(rollout.rollout_id, status="cancelled")
                raise
            finally:
                self._remembered.add(rollout.rollout_id, resources_id)
        await self._remembered.shrink()
        return result

    async def _play(self, rollout_id: str, key: RolloutKey) -> AttemptResult:
        losses: list[Lost] = []
        while True:
            claim = await self._claims.claimed(key)
            ended, turns = await self._ended(claim)
            if not isinstance(ended, Lost):
                if ended is None:
                    await self._store.update_attempt(rollout_id, claim.attempt_id, status="timeout")
                result = judge(ended, turns, self._timeout_seconds)
                return result if self._spans is None else await self._spans.adapt(rollout_id, claim.attempt_id, result)
            losses.append(ended)
            log.warning("a worker was lost", rollout=str(key), worker=claim.worker_id, why=ended.why)
            given_up = len(losses) >= MAX_LOST_WORKERS
            status = "failed" if given_up else "unresponsive"
            if not given_up:
                self._claims.again(key)
            await self._store.update_attempt(rollout_id, claim.attempt_id, status=status)
            if given_up:
                problem = f"WorkerLost: {len(losses)} workers were lost while they played it, the last one because "
                return AttemptResult(Outcome.FAILED, None, (), f"{problem}{ended.why}")

    async def _ended(self, claim: Claim) -> tuple[Report | Lost | None, tuple[Turn, ...]]:
        """How the claim ended, None at the deadline, and the turns taken in it."""
        try:
            ended = await asyncio.wait_for(asyncio.shield(claim.ended), self._timeout_seconds)
        except TimeoutError:
            ended = None
        return ended, self._claims.close(claim)
