"""What `verify` judges: one reading of a run directory, taken so that a run at work is not accused of working.

A run at work is always ahead of who reads it. So what it writes last is read first: the names of its files and its
views, between two readings of the journal. The first one says how old the views may be, the second one what is known.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.config import CONFIG_NAME
from orchestrator.errors import FaultFoundError
from orchestrator.journal.log import JOURNAL_NAME, Torn, read_journal, require_journal
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import RunState
from orchestrator.names import State
from orchestrator.reporting.metrics import FILE_NAME as METRICS_NAME
from orchestrator.training.checkpoints import FILE_NAME as CHECKPOINTS_NAME

VIEW_NAMES = (METRICS_NAME, CHECKPOINTS_NAME, CONFIG_NAME)
FOLDERS = ("rollouts", "turns", "datums", *(f"{LOCAL_DIRECTORY}/run/{kind}" for kind in ("weights", "sampler_weights")))
"""Those of the run directory in which every file or folder belongs to a batch."""
_SETTLED = frozenset({Kind.STATE_ENTERED, Kind.TRANSITION, Kind.RUN_FINISHED})
RESTORE = "Restore the file from a copy"


@dataclass(frozen=True, slots=True)
class Move:
    """One journaled transition, with what the process that made it was running."""

    record: Record
    batch: int
    state: State
    """The state that was left."""
    result: Mapping[str, Any]
    config: Mapping[str, Any]
    """Flat."""
    dataset: Mapping[str, Any]

    @property
    def attempt(self) -> int:
        """How often the state had been entered before."""
        return int(self.record.fields["attempt"])


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reading of a run directory."""

    log_path: Path
    names: Mapping[str, tuple[str, ...]]
    """What each of ``FOLDERS`` holds, sorted."""
    views: Mapping[str, bytes | None]
    """The content of each of ``VIEW_NAMES``; None: it is missing."""
    settled: int | None
    """Seq of the last record at which every view was surely up to date with the records before it; None: none was."""
    records: list[Record]
    run: RunState
    """The fold of ``records``."""
    torn: Torn | None
    """The journal's torn tail, which a kill, or a run at work, leaves behind."""

    def moves(self) -> Iterator[Move]:
        """Every transition, in order."""
        config: Mapping[str, Any] = {}
        dataset: Mapping[str, Any] = {}
        for record in self.records:
            fields = record.fields
            if record.kind is Kind.RUN_STARTED:
                dataset = fields["dataset"]
            if record.kind is Kind.PROCESS_STARTED:
                config = fields["config"]
                for drift in fields["drift"]:
                    if drift["field"] == "dataset":
                        dataset = drift["new"]
            if record.kind is Kind.TRANSITION:
                yield Move(record, fields["batch"], State(fields["source"]), fields["result"], config, dataset)

    def drifted(self) -> set[str]:
        """The fields that were ever accepted to differ."""
        started = (record for record in self.records if record.kind is Kind.PROCESS_STARTED)
        return {drift["field"] for record in started for drift in record.fields["drift"]}

    def recent(self) -> Iterator[RunState]:
        """The fold, again and again the same object, after each record that a view may be as old as."""
        run = RunState()
        for record in self.records:
            run.apply(record)
            if record.seq >= (self.settled or 0):
                yield run

    def record_fault(self, record: Record, problem: str) -> FaultFoundError:
        """What is wrong with ``record``, with its place in the journal."""
        path = self.log_path / JOURNAL_NAME
        lines = path.read_bytes().split(b"\n", record.seq)
        offset = sum(len(line) + 1 for line in lines[: record.seq])
        cure = (
            f"Nothing was changed. {RESTORE}, or keep only the records before this one with `truncate -s {offset} "
            f"{path}`"
        )
        problem = f"record {record.seq} ({record.kind}): {problem}"
        return FaultFoundError(path, line=record.seq + 1, offset=offset, problem=problem, cure=cure)


def gather(log_path: Path) -> Evidence:
    """Reads the directory.

    Raises:
        ConfigError: no run is there.
        JournalDamagedError: a record cannot be trusted.
        FaultFoundError: there are files of a run, but no record of it.
    """
    stored = [folder for folder in FOLDERS if _names(log_path / folder)]
    if stored and not read_journal(log_path).records:
        problem = f"has no record of a run, but something is stored in {' and '.join(stored)}"
        raise FaultFoundError(log_path / JOURNAL_NAME, problem=problem, cure=RESTORE)
    settled = [record.seq for record in require_journal(log_path).records if record.kind in _SETTLED]
    names = {folder: _names(log_path / folder) for folder in FOLDERS}
    views = {name: _content(log_path / name) for name in VIEW_NAMES}
    reading = require_journal(log_path)
    return Evidence(
        log_path, names, views, settled[-1] if settled else None, reading.records, reading.run, reading.torn
    )


def lines_of(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number (1-based), byte offset and content of each line of ``path``; one without its newline is left out.

    Raises:
        FaultFoundError: there is no such file.
    """
    data = _content(path)
    if data is None:
        raise FaultFoundError(path, problem="the file is missing", cure=f"{RESTORE}, or the whole run directory")
    offset = 0
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        yield number, offset, line
        offset += len(line) + 1


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.name for path in folder.iterdir())) if folder.is_dir() else ()


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
