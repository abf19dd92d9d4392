"""A run directory in which no run has begun: what may be in it, and what a start that was refused takes away again.

A run begins with the first record of its journal. What is made before that (files without a byte, the built-in model
that is kept beside the checkpoints) is made again by the next start, which may ask for another model.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.backends.usage import USAGE_NAME
from orchestrator.config import TINY
from orchestrator.errors import RefusedError
from orchestrator.journal.log import JOURNAL_NAME
from orchestrator.reporting.logs import LOG_FILE

FILES_OF_A_RUN = ("rollouts", "turns", "datums", f"{LOCAL_DIRECTORY}/run", "metrics.jsonl", USAGE_NAME)
"""Those that only a run makes once it has begun."""


def require_unused(log_path: Path) -> None:
    """Refuses to start a run among what another one left: its rollouts would pass for this run's.

    The caller holds the lock and has found no record.

    Raises:
        RefusedError: there are files of a run, and no journal.
    """
    left = _files_of_a_run(log_path)
    if left:
        raise RefusedError(
            f"{log_path}: holds {', '.join(left)} but no journal.jsonl, so what run they belong to is not known. "
            "Restore the journal to resume that run, or give another log_path"
        )
    _remove_model(log_path)


def leave_nothing(log_path: Path) -> None:
    """Takes away what a start leaves that was refused before its first record; does nothing to a run.

    The caller holds the lock.
    """
    for path in (log_path / JOURNAL_NAME, log_path / LOG_FILE):
        if path.is_file() and path.stat().st_size == 0:
            path.unlink()
    # A lost journal may be restored, and then the model is what the checkpoints belong to.
    if not (log_path / JOURNAL_NAME).exists() and not _files_of_a_run(log_path):
        _remove_model(log_path)


def _files_of_a_run(log_path: Path) -> list[str]:
    return [name for name in FILES_OF_A_RUN if (log_path / name).exists()]


def _remove_model(log_path: Path) -> None:
    """Only what a start has made: the directory may be one that somebody uses for something else."""
    base = log_path / LOCAL_DIRECTORY / "base"
    for made in (base / TINY, *base.glob(".unfinished-*")):
        if made.is_dir():
            shutil.rmtree(made)
    for folder in (base, base.parent):
        with suppress(OSError):  # it is not there, or there is more in it
            folder.rmdir()
