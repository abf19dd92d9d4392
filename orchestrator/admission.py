"""Whether a process may work on a run, and the records which say that it does."""

import importlib.metadata
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.config import Config, flatten
from orchestrator.errors import DriftError
from orchestrator.journal.drift import check_attempts, check_drift
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind
from orchestrator.rollouts.dataset import TaskBatches, TaskSets
from orchestrator.unbegun import require_unused

PACKAGES = ("agentlightning", "litellm", "tinker", "tinker-cookbook", "torch", "transformers", "transitions")
"""Those whose versions a run's results depend on."""


def admit(
    journal: Journal, config: Config, tasks: TaskSets, batches: TaskBatches, log_path: Path
) -> list[dict[str, Any]]:
    """What differs from what the run began with and is accepted; the rest is refused. Nothing is journaled yet.

    Raises:
        DriftError: configuration or tasks differ, or fewer batches are asked for than are trained.
        TooManyAttemptsError: the state has failed too often.
        RefusedError: the directory holds files of a run that has no journal.
    """
    if not journal.records:
        require_unused(log_path)
        return []
    drift = check_drift(journal.run, config, tasks.fingerprint())
    if batches.num_batches < journal.run.least_batches:
        raise DriftError(
            f"{log_path}: {journal.run.state} of batch {journal.run.batch} is reached, and the configuration asks for "
            f"{batches.num_batches} batches: give n_epochs and max_batches that reach at least as far"
        )
    check_attempts(journal.run, config)
    return drift


def take_up(
    journal: Journal, config: Config, tasks: TaskSets, batches: TaskBatches, drift: Sequence[Mapping[str, Any]]
) -> None:
    """Journals that this process works on the run, and before that, where there is none yet, that the run exists.

    Raises:
        JournalWriteError: it could not be written.
    """
    run, flat = journal.run, flatten(config)
    resumed_from = {"batch": run.batch, "state": run.state.value} if journal.records else None
    if not journal.records:
        journal.append(
            Kind.RUN_STARTED,
            run_id=uuid4().hex,
            config=flat,
            dataset=tasks.fingerprint(),
            num_batches=batches.num_batches,
            schedule_batches=batches.num_batches,
            versions={package: importlib.metadata.version(package) for package in PACKAGES},
        )
    journal.append(
        Kind.PROCESS_STARTED,
        pid=os.getpid(),
        host=socket.gethostname(),
        resumed_from=resumed_from,
        attempt=run.processes,
        config=flat,
        drift=list(drift),
        num_batches=batches.num_batches,
    )
