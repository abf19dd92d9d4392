"""What a backend keeps of one run: the checkpoint it resumes from, when that expires, and what nobody knows of."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.local.checkpoints import CheckpointStore
from orchestrator.backends.local.clients import LocalRestClient
from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.backends.surface import RestClient
from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, fault, ok, warning
from orchestrator.errors import BackendError
from orchestrator.journal.lock import RunLock
from orchestrator.journal.recovery import RunState
from orchestrator.telling import told
from orchestrator.training.expiry import expires_within_a_batch, resume_point, time_left
from orchestrator.training.orphans import find_orphans

MOST_SHOWN = 3


async def check_run(config: Config, log_path: Path, run: RunState, service: RestClient) -> AsyncIterator[Finding]:
    """Looks for what the journal relies on and for what it does not know; deletes nothing.

    ``service`` is asked, or, where the backend is embedded, the run's own files.
    """
    rest_client = service
    if config.backend == "local":
        rest_client = LocalRestClient(CheckpointStore(log_path / LOCAL_DIRECTORY, clear=False))
    yield await _check_resume_point(config, rest_client, run)
    if (holder := RunLock.holder(log_path)) is not None:
        yield ok("orphans", f"not looked for while {holder} is at work: its newest saves are not journaled yet")
        return
    try:
        orphans = await find_orphans(rest_client, run, timeout_seconds=config.backend_timeout_seconds)
    except (tinker.TinkerError, BackendError) as error:
        yield warning("orphans", f"the backend does not list what it keeps ({told(error)})")
        return
    if not orphans.paths:
        yield ok("orphans", f"none among {orphans.listed:,} checkpoints")
        return
    shown = ", ".join(orphans.paths[:MOST_SHOWN]) + (", ..." if len(orphans.paths) > MOST_SHOWN else "")
    how = "their directories" if config.backend == "local" else "them with `tinker checkpoint delete PATH`"
    yield warning("orphans", f"{orphans.told()}: {shown}", f"The run never uses them: delete {how}")


async def _check_resume_point(config: Config, rest_client: RestClient, run: RunState) -> Finding:
    checkpoint = resume_point(run)
    if checkpoint is None:
        return ok("resume", "no checkpoint yet: a resume begins with the base model")
    name = f"checkpoint {checkpoint.name}"
    try:
        request = rest_client.get_weights_info_by_tinker_path(checkpoint.state_path)
        await reply_within(config.backend_timeout_seconds, request, f"looking for {name}")
    except tinker.NotFoundError:
        advice = "A resume takes an older one, or the base model, and redoes the stored train steps since"
        return fault("resume", f"{name}, the newest, is gone", advice)
    except (tinker.TinkerError, BackendError) as error:
        return warning("resume", f"the backend does not say whether {name} is there ({told(error)})")
    now = datetime.now(UTC)
    left = time_left(checkpoint, now=now)
    if left is None:
        return ok("resume", f"{name} is there and never expires")
    found = f"{name} is there and expires in {left.total_seconds() / 3600:,.1f} hours"
    if not run.finished and expires_within_a_batch(run, checkpoint, now=now):
        return warning("resume", found, "Resume the run before, or it redoes train steps from an older one")
    return ok("resume", found)
