"""Which worker plays which rollout: who was handed it, who was heard of last, and how it ended or was lost."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from orchestrator.errors import OrchestratorError
from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import RolloutKey, Turn

log = structlog.get_logger(__name__)

NO_WORKER_SECONDS = 30.0
"""Rollouts that wait so long with no worker there are worth a warning."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker will not finish what it claimed."""

    why: str


@dataclass(slots=True, eq=False)
class Claim:
    """One worker's hold on one rollout."""

    rollout_id: str
    attempt_id: str
    worker_id: str
    ended: "asyncio.Future[Report | Lost]"
    report: Report | None = None
    """Told before the end: an end without one is a loss."""

    def end(self, how: Report | Lost) -> None:
        """Ends it; what comes after the first end does not count."""
        if not self.ended.done():
            self.ended.set_result(how)


@dataclass(slots=True, eq=False)
class _Awaited:
    key: RolloutKey
    attempt: int
    claim: "asyncio.Future[Claim]"


@dataclass(slots=True)
class Claims:
    """The rollouts that wait for a worker or are being played by one. Belongs to one event loop.

    An attempt is made known to the capture when it is claimed, before its worker hears of it, and forgotten when it is
    lost: the calls of a worker that was replaced are refused, and what it reports names no claim any more.
    """

    capture: Capture
    lost_seconds: float
    """A worker that was not heard of for so long is taken for dead."""
    work: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a rollout waits for a worker."""
    over: str | None = None
    """What workers are told once the run has no more work, and why; None: it goes on."""
    _awaited: dict[str, _Awaited] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _open: dict[tuple[str, str], Claim] = field(default_factory=dict)
    _heard_at: dict[str, float] = field(default_factory=dict)
    _failure: OrchestratorError | None = None
    _work_since: float = 0.0
    _warned: bool = False

    @contextmanager
    def awaiting(self, key: RolloutKey, attempt: int) -> Iterator[None]:
        """A rollout that may be claimed from now on, and of which nothing counts once it is left.

        Raises:
            OrchestratorError: no worker will ever come, see ``fail``.
        """
        if self._failure is not None:
            raise self._failure
        self._awaited[str(key)] = awaited = _Awaited(key, attempt, _future())
        self._wait(str(key))
        try:
            yield
        finally:
            del self._awaited[str(key)]
            self._stop_waiting(str(key))
            if awaited.claim.done() and awaited.claim.exception() is None:
                self.close(awaited.claim.result())
            awaited.claim.cancel()

    async def claimed(self, key: RolloutKey) -> Claim:
        """Waits for a worker to take the rollout.

        Raises:
            OrchestratorError: no worker will ever come, see ``fail``.
        """
        return await asyncio.shield(self._awaited[str(key)].claim)

    def again(self, key: RolloutKey) -> None:
        """The rollout was lost by its worker and waits for another."""
        self._awaited[str(key)].claim = _future()
        self._wait(str(key))

    def claim(self, rollout_key: str, rollout_id: str, attempt_id: str, worker_id: str) -> bool:
        """A worker takes the rollout; False where nobody waits for it any more."""
        for held in [claim for claim in self._open.values() if claim.worker_id == worker_id]:
            self.lose(held, "its worker asked for another")
        awaited = self._awaited.get(rollout_key)
        if awaited is None or awaited.claim.done():
            return False
        claim = Claim(rollout_id, attempt_id, worker_id, _future())
        self.capture.register(rollout_id, attempt_id, awaited.key, awaited.attempt)
        self._open[rollout_id, attempt_id] = claim
        self._stop_waiting(rollout_key)
        awaited.claim.set_result(claim)
        return True

    def find(self, rollout_id: str, attempt_id: str) -> Claim | None:
        """The claim that a worker speaks of; None once it is over or replaced, and for those of an earlier process."""
        claim = self._open.get((rollout_id, attempt_id))
        if claim is not None:
            self.heard_of(claim.worker_id)
        return claim

    def close(self, claim: Claim) -> tuple[Turn, ...]:
        """The turns taken in this claim; nothing more of it counts from now on."""
        self._open.pop((claim.rollout_id, claim.attempt_id), None)
        return self.capture.collect(claim.rollout_id, claim.attempt_id)

    def lose(self, claim: Claim, why: str) -> None:
        """The rollout has to go to another worker, which its turns so far will answer."""
        self._open.pop((claim.rollout_id, claim.attempt_id), None)
        self.capture.set_aside(claim.rollout_id, claim.attempt_id)
        claim.end(Lost(why))

    def heard_of(self, worker_id: str) -> None:
        """The worker lives."""
        self._heard_at[worker_id] = time.monotonic()

    def hear_again(self) -> None:
        """This process was frozen: what its workers had to say meanwhile is still to be read, so each has time anew."""
        now = time.monotonic()
        self._heard_at = dict.fromkeys(self._heard_at, now)

    def gone(self, worker_id: str, why: str) -> None:
        """The worker is dead or left; what it held is lost."""
        self._heard_at.pop(worker_id, None)
        for claim in [claim for claim in self._open.values() if claim.worker_id == worker_id]:
            self.lose(claim, why)

    def fail(self, error: OrchestratorError) -> None:
        """No worker will ever come: who waits is told ``error``."""
        self._failure = error
        for awaited in self._awaited.values():
            if not awaited.claim.done():
                awaited.claim.set_exception(error)

    def silent(self) -> list[str]:
        """The workers that were not heard of for ``lost_seconds``."""
        now = time.monotonic()
        return [worker_id for worker_id, heard in self._heard_at.items() if now - heard > self.lost_seconds]

    def warn_if_nobody_comes(self, advice: str) -> None:
        """Says once that rollouts wait although there is no worker."""
        if self._heard_at or not self._waiting:
            self._warned = False
        elif not self._warned and time.monotonic() - self._work_since > NO_WORKER_SECONDS:
            self._warned = True
            log.warning(f"{len(self._waiting)} rollouts wait and no worker is there; {advice}")

    def _wait(self, rollout_key: str) -> None:
        if not self._waiting:
            self._work_since = time.monotonic()
        self._waiting.add(rollout_key)
        self.work.set()

    def _stop_waiting(self, rollout_key: str) -> None:
        self._waiting.discard(rollout_key)
        if not self._waiting:
            self.work.clear()


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()
