"""The weights of any batch of any run, made again: nothing is sampled, and nothing of that run changes.

The journal and the stored datums say what every train step sent. So the weights after any batch are those of the newest
live checkpoint before it, plus the train steps since. A run at work only adds to what is read here, but for checkpoints
that it deletes; then an older one is taken.
"""

from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.places import BASE_DIRECTORY, saved_at
from orchestrator.backends.surface import ServiceClient, TrainingClient
from orchestrator.config import TINY
from orchestrator.errors import ConfigError, RefusedError, UnrecoverableError
from orchestrator.journal.past import PastRun
from orchestrator.journal.recovery import Checkpoint, ForkedFrom, RunState
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.datums import TrainStepInput
from orchestrator.training.weights import TrainedWeights

ReplyT = TypeVar("ReplyT")


class PastWeights:
    """The weights of a past run, on clients of a service that is not that run's own."""

    def __init__(self, past: PastRun, service: ServiceClient) -> None:
        """``service`` reaches what the run saved; on the embedded backend it was made with ``kept_base`` of the run."""
        saved = [replace(live, state_path=saved_at(live.state_path, past.log_path)) for live in past.run.checkpoints]
        self._run = replace(past.run, checkpoints=saved)
        self._timeout_seconds = past.config.backend_timeout_seconds
        rest_client = service.create_rest_client()
        ledger = _Onlooker(past.config, past.log_path, rest_client, run=self._run)
        fork = past.run.forked_from
        origin = None if fork is None else Parent(fork, service, needed_by=past.log_path)
        self._weights = TrainedWeights(past.config, past.log_path, service, ledger, origin=origin)

    async def require(self, batch: int) -> None:
        """Raises UnrecoverableError or SideFileDamagedError where ``at_batch`` could not work; nothing is made."""
        await self._weights.require_restorable(self._run, batch)

    async def at_batch(self, batch: int) -> TrainingClient:
        """The client with weights and optimizer as they were after ``batch`` batches, which the run has.

        Raises:
            UnrecoverableError, SideFileDamagedError: as ``TrainedWeights.at_batch``.
        """
        return await self._weights.at_batch(self._run, batch, recorder=_Nobody())

    async def apply(self, client: TrainingClient, step: TrainStepInput) -> dict[str, float]:
        """As ``TrainedWeights.apply``, on the client that ``at_batch`` gave, or around it."""
        return await self._weights.apply(client, step)

    async def reply(self, request: Awaitable[ReplyT], what: str) -> ReplyT:
        """The reply to ``request``. Raises BackendError where it does not come in time."""
        return await reply_within(self._timeout_seconds, request, what)


class Parent:
    """The run that another one was forked from, as that one's origin."""

    def __init__(self, fork: ForkedFrom, service: ServiceClient, *, needed_by: Path) -> None:
        """``needed_by`` is the fork's run directory. Nothing is read yet: mostly nothing has to be."""
        self._fork = fork
        self._service = service
        self._needed_by = needed_by

    async def require(self) -> None:
        """Raises UnrecoverableError or SideFileDamagedError where ``restore`` could not work."""
        await PastWeights(self._past(), self._service).require(self._fork.batch)

    async def restore(self) -> TrainingClient:
        """A new client with the parent's weights and optimizer at the batch of the fork."""
        return await PastWeights(self._past(), self._service).at_batch(self._fork.batch)

    def _past(self) -> PastRun:
        fork = self._fork
        try:
            past = PastRun(Path(fork.log_path))
        except (ConfigError, RefusedError) as error:
            raise self._missing(str(error)) from error
        if past.run.run_id != fork.run_id:
            raise self._missing(f"the run there is {past.run.run_id}")
        if past.digest(fork.seq) != fork.sha256:
            raise self._missing(f"its journal up to record {fork.seq} is not what it was when the fork was made")
        return past

    def _missing(self, found: str) -> UnrecoverableError:
        fork = self._fork
        return UnrecoverableError(
            f"{self._needed_by}: no checkpoint of its own is alive, and its parent, run {fork.run_id} in "
            f"{fork.log_path}, cannot give the weights of batch {fork.batch}: {found}. Restore the parent there, or "
            f"give its place: `python -m orchestrator fork PLACE --batch {fork.batch} log_path={self._needed_by}`. A "
            "fork needs its parent until its first checkpoint is saved, and again only if all of its own are lost"
        )


def kept_base(past: PastRun) -> Path | None:
    """Where a run keeps the built-in model that its weights belong to; None: it trains another model.

    Raises:
        UnrecoverableError: it is gone.
    """
    if past.config.backend != "local" or past.config.model_name != TINY:
        return None
    base = past.log_path / BASE_DIRECTORY
    if not (base / TINY).is_dir():
        raise UnrecoverableError(
            f"{base / TINY}: the built-in model that the run was trained from is missing; restore it from a copy"
        )
    return base


class _Onlooker(CheckpointLedger):
    """The ledger of somebody else's run: it says what lives, and leaves the view to its owner."""

    def write_view(self, run: RunState) -> None:
        """The owner makes it from the journal, which is not written here either."""


class _Nobody:
    """Records nothing: what becomes of somebody else's checkpoints is for their run to find out."""

    def checkpoint_saved(self, checkpoint: Checkpoint) -> None:
        """None is saved."""

    def checkpoint_lost(self, checkpoint: Checkpoint, *, reason: str) -> None:
        """The next older one is taken; the user has been warned."""
