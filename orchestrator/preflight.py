"""What can be refused before the libraries of a run, seconds of imports, are loaded."""

import os
from collections.abc import Mapping
from pathlib import Path

from orchestrator.backends.requirements import check_backend
from orchestrator.config import Config
from orchestrator.journal.drift import check_attempts, check_drift
from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import read_journal
from orchestrator.reporting.budget import require_budget
from orchestrator.reporting.logs import PatientConsole
from orchestrator.reporting.metrics import MetricRows
from orchestrator.reporting.spending import read_spending
from orchestrator.reporting.summarize import summarize
from orchestrator.reporting.summary import summary_panel
from orchestrator.reporting.trackers.requirements import check_trackers
from orchestrator.reporting.work import read_work
from orchestrator.rollouts.dataset import load_batches, load_tasks
from orchestrator.rollouts.runners.requirements import check_placement


def check_before_start(config: Config, *, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is anything to do. Refuses what the run would refuse after its imports.

    Nothing is started and no file of a run is changed. Tasks that Python gives, and trackers, are left to the run,
    because what they import takes time; it may find that there is nothing to do.

    Raises:
        ConfigError: the backend's key or model, a tracker's package or key or the placement's package or cluster is
            missing, or the task file cannot be read or does not fill a batch.
        BudgetReachedError: the run may spend nothing more.
        RefusedError: another process has the run, its journal is damaged, or configuration or tasks have drifted.
    """
    check_backend(config, environ)
    check_trackers(config)
    check_placement(config)
    tasks = batches = None
    if config.train_dataset is None and config.val_dataset is None and not any(":" in spec for spec in config.evals):
        tasks = load_tasks(config)
        batches = load_batches(config, tasks)
    log_path = Path(config.log_path)
    if not log_path.exists():
        return True
    with RunLock.acquire(log_path):
        reading = read_journal(log_path)
    run = reading.run
    if not run.run_id:
        return True
    check_drift(run, config, run.dataset if tasks is None else tasks.fingerprint())
    check_attempts(run, config)
    if not run.finished:  # what is finished has nothing to do, or is extended with the run's own look at its budget
        require_budget(config, read_spending(log_path, reading.records))
    tracked = config.wandb_project or config.trackio_project or config.tensorboard
    return not run.finished or batches is None or batches.num_batches > run.num_batches or bool(tracked)


def tell_finished(log_path: Path) -> None:
    """What a run that has finished tells when it is started again; its metric rows are made to equal the journal's."""
    with RunLock.acquire(log_path):
        reading = read_journal(log_path)
        MetricRows(log_path, reading.run).close()
        work = read_work(log_path, reading.records, reading.run, live=False)
        spending = read_spending(log_path, reading.records)
    console = PatientConsole(stderr=True)
    console.print("nothing to do: the run has finished")
    console.print(summary_panel(summarize(reading.run, log_path, work, spending)))
