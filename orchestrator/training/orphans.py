"""What a backend keeps of a run that the run knows nothing of: saved by a process that died before it said so."""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

import structlog
import tinker
from tinker import types

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import RestClient
from orchestrator.errors import BackendError
from orchestrator.journal.recovery import RunState
from orchestrator.names import State
from orchestrator.telling import told

log = structlog.get_logger(__name__)

RUN_ID = "orchestrator_run_id"
"""Under this every save carries the id of its run, in ``user_metadata``."""
PAGE = 100
LISTING_SECONDS = 10.0
"""The longest wait for one of them, on which nothing depends."""
MOST_LISTED = 1_000
"""So many of the account's newest checkpoints are looked through."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """Checkpoints and samplers that nobody will ever ask for."""

    paths: tuple[str, ...]
    """Oldest first."""
    size_bytes: int
    """Of those whose size the backend tells."""
    listed: int
    """How many checkpoints, of whatever run, were looked through."""
    all_listed: bool
    """Whether the backend has no more than these."""

    def told(self) -> str:
        """How many, in words."""
        size = f", {self.size_bytes:,} bytes" if self.size_bytes else ""
        where = "" if self.all_listed else f" among the newest {self.listed:,} checkpoints of the account"
        return f"{len(self.paths)} saved under this run's id and not in its journal{size}{where}"


async def tell_orphans(rest_client: RestClient, run: RunState) -> None:
    """Says in one line of the log what processes that died have saved and not recorded; nothing is deleted."""
    try:
        orphans = await find_orphans(rest_client, run, timeout_seconds=LISTING_SECONDS)
    except (tinker.TinkerError, BackendError) as error:
        log.info("the backend does not list its checkpoints: orphans are not looked for", error=told(error))
        return
    if orphans.paths:
        log.warning(f"orphaned checkpoints: {orphans.told()}; they may be deleted", paths=orphans.paths)


async def find_orphans(rest_client: RestClient, run: RunState, *, timeout_seconds: float) -> Orphans:
    """Looks through what the backend lists; ``run`` is the fold of its whole journal, and no process is at work on it.

    Raises:
        tinker.TinkerError: the backend does not list what it keeps.
        BackendError: it did not answer within ``timeout_seconds``.
    """
    known = relied_on(run)
    found: list[types.Checkpoint] = []
    listed, all_listed = 0, False
    async for page in _pages(rest_client, timeout_seconds):
        listed += len(page)
        all_listed = len(page) < PAGE
        found += [saved for saved in page if _is_orphan(saved, run, known)]
    found.sort(key=lambda saved: (saved.time, saved.tinker_path))
    size_bytes = sum(saved.size_bytes or 0 for saved in found)
    return Orphans(tuple(saved.tinker_path for saved in found), size_bytes, listed, all_listed)


def relied_on(run: RunState) -> set[str]:
    """Every path that the journal says is needed, or is going to be deleted by the state after this one."""
    paths = {path for live in run.checkpoints for path in (live.state_path, live.sampler_path) if path is not None}
    paths |= {run.sampler_path} if run.sampler_path else set()
    served = (run.result(batch, State.PUBLISH_MODEL) for batch in (run.batch - 1, run.batch))
    return paths | {result["sampler_path"] for result in served if result is not None}


def _is_orphan(saved: types.Checkpoint, run: RunState, known: Collection[str]) -> bool:
    metadata = saved.user_metadata or {}
    if metadata.get(RUN_ID) != run.run_id or saved.tinker_path in known:
        return False
    # The embedded backend has one name for all processes, by which the state under way finds what it saved before.
    next_saved = run.batch + (run.state is not State.PUBLISH_MODEL)
    return run.config["backend"] != "local" or metadata.get("batch") != str(next_saved)


async def _pages(rest_client: RestClient, timeout_seconds: float) -> AsyncIterator[Sequence[types.Checkpoint]]:
    for offset in range(0, MOST_LISTED, PAGE):
        request = rest_client.list_user_checkpoints(limit=PAGE, offset=offset)
        page = (await reply_within(timeout_seconds, request, "listing checkpoints")).checkpoints
        yield page
        if len(page) < PAGE:
            return
