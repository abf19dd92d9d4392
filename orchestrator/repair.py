"""Repairs what can be decided safely: a torn last record, and views that no kill left as they are.

All of it can be made from the journal, and a resume would do the same. Every other fault is refused, and then nothing
at all is written. The original of each file is kept beside it before the file is touched, and each file is replaced at
once; a kill on the way leaves a directory on which the same command goes on.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from orchestrator.journal.durable import write_durably
from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import JOURNAL_NAME, Journal
from orchestrator.verify import CHECKS
from orchestrator.verify.evidence import Evidence, gather
from orchestrator.verify.views import check_views, view_faults


def repair(log_path: Path, *, tell: Callable[[str], object]) -> int:
    """Repairs the run in ``log_path`` and returns how many actions that took; ``tell`` gets a line before each.

    Raises:
        ConfigError: no run is there.
        LockedError: a process works on it.
        JournalDamagedError, FaultFoundError: there is a fault that cannot be repaired; every file is as it was.
        JournalWriteError: a file could not be written.
    """
    gather(log_path)  # before the lock, which would make the directory
    with RunLock.acquire(log_path):
        evidence = gather(log_path)
        for _, check in CHECKS:
            if check is not check_views:
                check(evidence)
        actions = list(_actions(evidence))
        for told, act in actions:
            tell(told)
            act()
    return len(actions)


def _actions(evidence: Evidence) -> Iterator[tuple[str, Callable[[], None]]]:
    """What is to be done, in words, and how."""
    log_path, torn = evidence.log_path, evidence.torn
    if torn is not None:
        path = log_path / JOURNAL_NAME
        kept = _beside(path)
        yield (
            f"{path}: cutting off the {len(torn.data)} bytes of a torn last record at byte {torn.offset}; the file as "
            f"it was is kept as {kept.name}, the bytes as {JOURNAL_NAME}.torn-{torn.offset}",
            partial(_cut, log_path, kept),
        )
    for view, fault in view_faults(evidence):
        path = log_path / view.name
        kept = _beside(path)
        original = f"the file as it was is kept as {kept.name}" if path.exists() else "there is no original to keep"
        yield (
            f"{path}: making it anew from the journal ({fault.problem}); {original}",
            partial(_replace, path, kept, view.content(evidence.run)),
        )


def _beside(path: Path) -> Path:
    """The first free name for the original of ``path``."""
    number = 0
    while (kept := path.with_name(f"{path.name}.before-repair-{number}")).exists():
        number += 1
    return kept


def _cut(log_path: Path, kept: Path) -> None:
    write_durably(kept, (log_path / JOURNAL_NAME).read_bytes())
    Journal(log_path).close()  # opening a journal keeps a torn tail aside and cuts it off


def _replace(path: Path, kept: Path, content: bytes) -> None:
    if path.exists():
        write_durably(kept, path.read_bytes())
    write_durably(path, content)
