"""Whether a process may work on a run, and the records which say that it does."""

import importlib.metadata
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config, flatten
from orchestrator.errors import BackendError, ConfigError, DriftError
from orchestrator.journal.drift import check_attempts, check_drift
from orchestrator.journal.durable import LineFile
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind
from orchestrator.journal.recovery import RunState
from orchestrator.lineage.fork import Fork
from orchestrator.names import State, counted
from orchestrator.rollouts.dataset import TaskBatches, TaskSets
from orchestrator.rollouts.outcomes import Mode, RolloutKey, check_lines, rollout_path, task_sha256
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
        SideFileDamagedError: the state under way has stored rollouts of other tasks than those it would go on with.
    """
    if not journal.records:
        require_unused(log_path)
        return []
    drift = check_drift(journal.run, config, tasks.fingerprint())
    if drift:
        # Once it is journaled the run's tasks are the new ones, and going back to the old would be drift as well.
        _check_stored(journal.run, config, tasks, batches, log_path)
    if batches.num_batches < journal.run.least_batches:
        raise DriftError(
            f"{log_path}: {journal.run.state} of batch {journal.run.batch} is reached, and the configuration asks for "
            f"{counted(batches.num_batches, 'batch')}: give n_epochs and max_batches that reach at least as far"
        )
    check_attempts(journal.run, config)
    return drift


def _check_stored(run: RunState, config: Config, tasks: TaskSets, batches: TaskBatches, log_path: Path) -> None:
    mode: Mode
    if run.state is State.ROLLOUT and run.batch < batches.num_batches:
        played, mode, group_size = [task for _, task in batches.batch(run.batch)], "train", config.group_size
    elif run.state is State.MAYBE_EVALUATE:
        played = [task for eval_set in tasks.eval_sets.values() for task in eval_set]
        mode, group_size = "eval", config.eval_group_size
    else:
        return
    path = rollout_path(log_path, run.batch, mode)
    keys = {RolloutKey(run.batch, mode, group, member) for group in range(len(played)) for member in range(group_size)}
    check_lines(path, LineFile.read_lines(path), keys, [task_sha256(task) for task in played])


async def require_reference(config: Config, service: ServiceClient) -> None:
    """Makes sure that the weights which the KL penalty is measured against are there.

    Raises:
        ConfigError: the backend has no checkpoint at ``kl_reference_config.load_checkpoint_path``.
        BackendError: the backend does not say.
    """
    if config.kl_penalty_coef > 0:
        path = config.kl_reference_config.load_checkpoint_path
        await _require_checkpoint(config, service, "kl_reference_config.load_checkpoint_path", path)


async def require_origin(config: Config, service: ServiceClient) -> None:
    """Makes sure that the weights which a new run is to begin with are there.

    Raises:
        ConfigError: the backend has no checkpoint at ``load_checkpoint_path``.
        BackendError: the backend does not say.
    """
    await _require_checkpoint(config, service, "load_checkpoint_path", config.load_checkpoint_path)


async def _require_checkpoint(config: Config, service: ServiceClient, field: str, path: str | None) -> None:
    if path is None:
        return
    request = service.create_rest_client().get_weights_info_by_tinker_path(path)
    try:
        await reply_within(config.backend_timeout_seconds, request, f"looking for {field}={path}")
    except (tinker.NotFoundError, tinker.BadRequestError) as error:
        where = (
            "the directory of a checkpoint, e.g. runs/other/local/run/weights/000030-final; local:// paths are the "
            "run's own"
            if config.backend == "local"
            else "a path that the service still has, e.g. tinker://.../weights/000030-final"
        )
        raise ConfigError(f"{field}={path}: there is no checkpoint (any more). Give {where}") from error
    except tinker.APIError as error:
        raise BackendError(
            f"{field}={path}: the service does not say whether it is there ({type(error).__name__}). "
            "The same command tries again"
        ) from error


def take_up(
    journal: Journal,
    config: Config,
    tasks: TaskSets,
    batches: TaskBatches,
    drift: Sequence[Mapping[str, Any]],
    fork: Fork | None = None,
) -> None:
    """Journals that this process works on the run, and before that, where there is none yet, that the run exists.

    ``fork`` says what a new run begins with, if not at batch 0; a run that exists already knows.

    Raises:
        JournalWriteError: it could not be written.
    """
    run, flat = journal.run, flatten(config)
    resumed_from = {"batch": run.batch, "state": run.state.value} if journal.records else None
    if not journal.records:
        lineage = {} if fork is None else {"forked_from": asdict(fork.record(tasks.fingerprint()))}
        journal.append(
            Kind.RUN_STARTED,
            run_id=uuid4().hex,
            config=flat,
            dataset=tasks.fingerprint(),
            num_batches=batches.num_batches,
            schedule_batches=batches.num_batches if fork is None else fork.schedule_batches,
            versions={package: importlib.metadata.version(package) for package in PACKAGES},
            **lineage,
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
