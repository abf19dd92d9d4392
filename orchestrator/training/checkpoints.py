"""The checkpoint ledger: what is saved under which name, what is still there, and what may go."""

import asyncio
import json
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog
import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import Future, RestClient, TrainingClient
from orchestrator.config import Config
from orchestrator.disk import DISK, Disk
from orchestrator.journal.durable import write_durably
from orchestrator.journal.recovery import Checkpoint, RunState
from orchestrator.names import batch_name
from orchestrator.training.expiry import expires_too_soon, expires_within_a_batch
from orchestrator.training.orphans import RUN_ID
from orchestrator.training.stake import client_at_stake

log = structlog.get_logger(__name__)

SavedT = TypeVar("SavedT", bound=Any)

FIRST_LOOK_SECONDS = 2.0
"""How long a service may take over a save before it is asked whether the checkpoint is there; then twice as long."""

JOURNAL_SEQ = "journal_seq"
"""Under this every save carries the seq of the newest record before it, in ``user_metadata``."""
FILE_NAME = "checkpoints.jsonl"


def view_of(run: RunState) -> bytes:
    """What ``checkpoints.jsonl`` holds: the live checkpoints, in the format that tinker-cookbook reads."""
    lines = []
    for checkpoint in sorted(run.checkpoints, key=lambda checkpoint: checkpoint.batch):
        row = {
            "name": checkpoint.name,
            "batch": checkpoint.batch,
            "final": True if checkpoint.checkpoint_kind == "final" else None,
            "state_path": checkpoint.state_path,
            "sampler_path": checkpoint.sampler_path,
        }
        lines.append(json.dumps({key: value for key, value in row.items() if value is not None}) + "\n")
    return "".join(lines).encode()


class CheckpointRecorder(Protocol):
    """The two facts about checkpoints that may be journaled from inside a state."""

    def checkpoint_saved(self, checkpoint: Checkpoint) -> None:
        """``checkpoint`` is complete and can be restored."""
        ...

    def checkpoint_lost(self, checkpoint: Checkpoint, *, reason: str) -> None:
        """``checkpoint`` must not be relied on any more."""
        ...


def candidates(run: RunState, *, at_most_batch: int) -> list[Checkpoint]:
    """What could be restored, by the journal: checkpoints of at most ``at_most_batch`` batches, newest first."""
    fitting = [checkpoint for checkpoint in run.checkpoints if checkpoint.batch <= at_most_batch]
    return sorted(fitting, key=lambda checkpoint: checkpoint.batch, reverse=True)


class CheckpointLedger:
    """Saves under names that a repeated save finds again, and tells what a restore can rely on."""

    def __init__(
        self,
        config: Config,
        log_path: Path,
        rest_client: RestClient,
        *,
        run: RunState,
        disk: Disk = DISK,
    ) -> None:
        """Every save carries the id of ``run`` and the seq of its newest record, so that it can be told whose it is."""
        self._config = config
        self._log_path = log_path
        self._disk = disk
        self._rest_client = rest_client
        self._run = run
        self._told_gone: set[str] = set()

    def due_kind(self, batch: int, *, num_batches: int) -> str | None:
        """Which kind of checkpoint is due once ``batch`` batches are trained: final, periodic, rolling or none."""
        if batch == num_batches:
            return "final"
        if self._config.save_every and batch % self._config.save_every == 0:
            return "periodic"
        if self._config.rolling_save_every and batch % self._config.rolling_save_every == 0:
            return "rolling"
        return None

    def is_renewal_due(self, run: RunState, batch: int) -> bool:
        """Whether one is needed once ``batch`` batches are trained although none is due: see ``expires_too_soon``."""
        later = range(batch + 1, run.num_batches + 1)
        next_due = next((due for due in later if self.due_kind(due, num_batches=run.num_batches)), batch)
        lifetime_seconds = self._lifetime(self._config.rolling_ttl_seconds)
        now = datetime.now(UTC)
        if not expires_too_soon(run, batches_to_next_save=next_due - batch, lifetime_seconds=lifetime_seconds, now=now):
            return False
        log.warning("the newest checkpoint expires before the next is due: saved early", batch=batch, next_due=next_due)
        return True

    async def save_sampler(self, client: TrainingClient, *, batch: int, num_batches: int) -> str:
        """Saves the weights that ``batch`` is sampled with, and returns their path."""
        ttl_seconds = None if batch == num_batches else self._lifetime(self._config.ttl_seconds)
        name = batch_name(batch)
        metadata = self._metadata(batch)
        with client_at_stake(f"saving sampler {name}"):
            request = client.save_weights_for_sampler_async(name, ttl_seconds, metadata)
            return await self._saved_path(client, request, section="sampler_weights", name=name)

    async def save_state(self, client: TrainingClient, *, batch: int, kind: str, sampler_path: str) -> Checkpoint:
        """Saves weights and optimizer after ``batch`` batches; nothing is journaled yet.

        The save must be requested after the batch's last optimizer step and before anything of the next batch:
        the service orders by request.
        """
        # The batch is part of every name: an extended run saves a second final checkpoint, which is another one.
        name = batch_name(batch) if kind in {"initial", "periodic"} else f"{batch_name(batch)}-{kind}"
        lifetimes = {"rolling": self._config.rolling_ttl_seconds, "final": None}
        ttl_seconds = self._lifetime(lifetimes.get(kind, self._config.ttl_seconds))
        metadata = self._metadata(batch)
        with client_at_stake(f"saving checkpoint {name}"):
            request = client.save_state_async(name, ttl_seconds, user_metadata=metadata)
            state_path = await self._saved_path(client, request, section="weights", name=name)
        expires_at = None if ttl_seconds is None else datetime.now(UTC) + timedelta(seconds=ttl_seconds)
        return Checkpoint(
            batch=batch,
            name=name,
            checkpoint_kind=kind,
            state_path=state_path,
            sampler_path=None if kind == "rolling" else sampler_path,
            expires_at=None if expires_at is None else expires_at.isoformat(),
        )

    def _metadata(self, batch: int) -> dict[str, str]:
        seq = self._run.num_records - 1
        return {RUN_ID: self._run.run_id, "batch": str(batch), JOURNAL_SEQ: str(seq)}

    def _lifetime(self, ttl_seconds: int | None) -> int | None:
        """Files on the user's own disk do not expire: a run taken up again after a holiday needs them."""
        return None if self._config.backend == "local" else ttl_seconds

    async def is_live(self, checkpoint: Checkpoint) -> bool:
        """Whether the backend still has ``checkpoint``; a warning says where not."""
        live = await self.exists(checkpoint.state_path)
        if not live:
            self.tell_gone(checkpoint)
        return live

    def tell_gone(self, checkpoint: Checkpoint) -> None:
        """Warns that the backend does not have ``checkpoint``, once in a process."""
        if checkpoint.state_path not in self._told_gone:
            self._told_gone.add(checkpoint.state_path)
            log.warning("checkpoint is gone, trying an older one", checkpoint=checkpoint.name, batch=checkpoint.batch)

    def is_expiring(self, checkpoint: Checkpoint) -> bool:
        """Whether what this process resumes from may be gone before it has saved another; a warning says so."""
        expiring = expires_within_a_batch(self._run, checkpoint, now=datetime.now(UTC))
        if expiring:
            log.warning(
                "the checkpoint that this run resumes from expires soon: it is restored now, and another one "
                "saved after the next train step",
                checkpoint=checkpoint.name,
                expires_at=checkpoint.expires_at,
            )
        return expiring

    async def drop_superseded_rolling(self, run: RunState, newest: Checkpoint, recorder: CheckpointRecorder) -> None:
        """Deletes the rolling checkpoints older than ``newest``, which must be journaled already."""
        for checkpoint in list(run.checkpoints):
            if checkpoint.checkpoint_kind == "rolling" and checkpoint.batch < newest.batch:
                await self.delete(checkpoint.state_path)
                recorder.checkpoint_lost(checkpoint, reason=f"superseded by {newest.name}")

    async def delete(self, path: str) -> None:
        """Deletes what is saved under ``path``; that it is gone already is as good."""
        try:
            request = self._rest_client.delete_checkpoint_from_tinker_path_async(path)
            await self._reply(request, f"deleting {path}")
        except tinker.NotFoundError:
            log.debug("was deleted before", path=path)

    def write_view(self, run: RunState) -> None:
        """Rewrites ``checkpoints.jsonl`` from the journal."""
        write_durably(self._log_path / FILE_NAME, view_of(run), disk=self._disk)

    async def exists(self, path: str) -> bool:
        """Whether the backend still has what was saved under ``path``."""
        try:
            await self._reply(self._rest_client.get_weights_info_by_tinker_path(path), f"looking for {path}")
        except tinker.NotFoundError:
            return False
        return True

    async def _saved_path(
        self, client: TrainingClient, request: Awaitable[Future[SavedT]], *, section: str, name: str
    ) -> str:
        """The path a save answers with; where an earlier try of that save was applied, that one's path.

        A name holds the number of batches trained, and the weights after these are always the same. So a name that is
        taken means that this very save was applied before and its reply, or the process, lost.
        """
        saving = asyncio.ensure_future(self._reply(_replied(request), f"saving {section}/{name}"))
        look_seconds = None if self._config.backend == "local" else FIRST_LOOK_SECONDS
        try:
            while not (await asyncio.wait({saving}, timeout=look_seconds))[0]:
                # The SDK answers a taken name by asking again, for five minutes; meanwhile the checkpoint is there.
                path = await self._path(client, section, name)
                if await self._is_there(path) and not saving.done():
                    return self._adopted(path)
                look_seconds = 2 * look_seconds if look_seconds else None
            return str(saving.result().path)
        except tinker.ConflictError:
            return self._adopted(await self._path(client, section, name))
        except tinker.RequestFailedError:
            # Accepted and failed later, perhaps for the name: then what has it is there.
            path = await self._path(client, section, name)
            if not await self._is_there(path):
                raise
            return self._adopted(path)
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def _path(self, client: TrainingClient, section: str, name: str) -> str:
        owner = (await self._reply(client.get_info_async(), "asking for the model id")).model_id
        return f"{self._config.backend}://{owner}/{section}/{name}"

    async def _is_there(self, path: str) -> bool:
        """Whether a checkpoint is known to be there; a service that will not say leaves it to the save's own reply."""
        try:
            return await self.exists(path)
        except tinker.APIStatusError as error:
            log.debug("the service does not say whether a checkpoint is there", path=path, status=error.status_code)
            return False

    def _adopted(self, path: str) -> str:
        log.warning("adopted what was saved before under this name", path=path)
        return path

    async def _reply(self, request: Awaitable[SavedT], what: str) -> SavedT:
        return await reply_within(self._config.backend_timeout_seconds, request, what)


async def _replied(request: Awaitable[Future[SavedT]]) -> SavedT:
    return await (await request).result_async()
