"""The ``rebuild`` command: the weights after any batch of a run are made again and saved where the run does not look.

Effects: two saves under a name that is derived from all that decides the weights, so that one which is there already,
because another rebuild was killed after making it, is this very one. The embedded backend saves in a store of its own
under the run directory, with a lock of its own; the service gives every new training client a model id of its own.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.places import saved_at
from orchestrator.backends.service import make_backend
from orchestrator.backends.surface import Future, ServiceClient, TrainingClient
from orchestrator.config import Config
from orchestrator.journal.lock import RunLock
from orchestrator.journal.past import PastRun
from orchestrator.lineage.failures import failures_told
from orchestrator.names import State, batch_name
from orchestrator.training.past import PastWeights, kept_base

REBUILT = "rebuilt"
"""Under the run directory: the embedded backend's store of rebuilt weights."""

ReplyT = TypeVar("ReplyT", bound=Any)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Weights that were made again."""

    batch: int
    """Batches trained in them."""
    state_path: str
    """Weights and optimizer."""
    sampler_path: str
    found: bool
    """Whether an earlier rebuild had made them already."""

    def lines(self) -> list[str]:
        """What is told of them."""
        how = "were rebuilt before" if self.found else "are rebuilt"
        return [
            f"the weights after {self.batch} batches {how}",
            f"weights  {self.state_path}",
            f"sampler  {self.sampler_path}",
        ]


def rebuild(past: PastRun, config: Config, batch: int) -> Rebuilt:
    """Makes the weights after ``batch`` batches again, and saves them; ``config`` is the run's, as it is reached now.

    Raises:
        UnrecoverableError: no checkpoint is alive and the batches cannot be redone.
        SideFileDamagedError: the datums of a batch to redo are missing or changed.
        LockedError: another rebuild of this run is at work on the embedded backend.
        ConfigError, BackendError: the service cannot be reached, or failed.
    """
    with ExitStack() as stack:
        stack.enter_context(failures_told(past.log_path))
        folder = past.log_path / REBUILT
        if config.backend == "local":
            stack.enter_context(RunLock.acquire(folder))
        return asyncio.run(_rebuild(past, config, batch, folder))


async def _rebuild(past: PastRun, config: Config, batch: int, folder: Path) -> Rebuilt:
    backend = make_backend(config, folder, base=kept_base(past))
    await backend.connect()
    metadata = {"orchestrator_rebuilt_run_id": past.run.run_id, "batch": str(batch)}
    saver = _Saver(config, folder, backend.service, metadata)
    name = name_of(past, batch)
    if (kept := await saver.kept(name)) is not None:
        return Rebuilt(batch, *kept, found=True)
    client = await PastWeights(past, backend.service).at_batch(batch)
    return Rebuilt(batch, *await saver.save(client, name), found=False)


def name_of(past: PastRun, batch: int) -> str:
    """The name that the weights after ``batch`` batches are saved under, e.g. ``000007-rebuilt-3f09a1bc``."""
    run = past.run
    steps = [run.batches[before].results[State.TRAIN_STEP]["sha256"] for before in range(run.first_batch, batch)]
    decided_by = [run.run_id, *(step or "skipped" for step in steps)]
    return f"{batch_name(batch)}-{REBUILT}-{sha256(' '.join(decided_by).encode()).hexdigest()[:8]}"


class _Saver:
    """Saves a client's weights twice, as state and as sampler, under one name."""

    def __init__(self, config: Config, folder: Path, service: ServiceClient, user_metadata: dict[str, str]) -> None:
        self._config = config
        self._folder = folder
        self._rest_client = service.create_rest_client()
        self._user_metadata = user_metadata

    async def kept(self, name: str) -> tuple[str, str] | None:
        """Where both are, on the embedded backend; None: they are not, or would be under another model id."""
        if self._config.backend != "local":
            return None
        paths = [self._path("run", section, name) for section in ("weights", "sampler_weights")]
        for path in paths:
            try:
                await self._reply(self._rest_client.get_weights_info_by_tinker_path(path), f"looking for {path}")
            except tinker.NotFoundError:
                return None
        return self._told(paths)

    async def save(self, client: TrainingClient, name: str) -> tuple[str, str]:
        """Where both are now."""
        ttl_seconds = None if self._config.backend == "local" else self._config.ttl_seconds
        metadata = self._user_metadata
        state = client.save_state_async(name, ttl_seconds, user_metadata=metadata)
        state_path = await self._saved(client, state, "weights", name)
        sampler = client.save_weights_for_sampler_async(name, ttl_seconds, metadata)
        return self._told([state_path, await self._saved(client, sampler, "sampler_weights", name)])

    async def _saved(self, client: TrainingClient, request: Awaitable[Future[ReplyT]], section: str, name: str) -> str:
        try:
            return str((await self._reply(_result(request), f"saving {section}/{name}")).path)
        except tinker.ConflictError:  # a rebuild that was killed had come so far
            info = await self._reply(client.get_info_async(), "asking for the model id")
            return self._path(info.model_id, section, name)

    def _path(self, owner: str, section: str, name: str) -> str:
        return f"{self._config.backend}://{owner}/{section}/{name}"

    def _told(self, paths: Sequence[str]) -> tuple[str, str]:
        state_path, sampler_path = (saved_at(path, self._folder) for path in paths)
        return state_path, sampler_path

    async def _reply(self, request: Awaitable[ReplyT], what: str) -> ReplyT:
        return await reply_within(self._config.backend_timeout_seconds, request, what)


async def _result(request: Awaitable[Future[ReplyT]]) -> ReplyT:
    return await (await request).result_async()
