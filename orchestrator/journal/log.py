"""The journal file: one reader with one policy for damage, and the one writer."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from orchestrator.disk import DISK, Disk
from orchestrator.errors import ConfigError, JournalDamagedError, RefusedError
from orchestrator.journal.durable import LineFile, write_durably
from orchestrator.journal.records import InvalidRecordError, Kind, Record, as_read, decode, encode
from orchestrator.journal.recovery import IllegalStepError, RunState
from orchestrator.process import no_collection

JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True, slots=True)
class Torn:
    """What followed the journal's last newline: a record whose append never ended, so nobody relies on it."""

    offset: int
    """The byte at which it begins."""
    data: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole journal, judged and folded."""

    records: list[Record]
    torn: Torn | None
    run: RunState


def read_journal(log_path: Path) -> Reading:
    """Reads ``log_path/journal.jsonl`` without writing; a missing one is an empty one.

    Raises:
        JournalDamagedError: a newline-terminated line is not the record that must stand there: it does not decode, its
            crc is wrong, its seq leaves a gap, its kind is unknown, its format newer, or it is no legal step.
        RefusedError: it cannot be read.
    """
    path = log_path / JOURNAL_NAME
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise RefusedError(
            f"{path}: cannot be read ({error.strerror}). Nothing was changed; make it a readable file, or give another "
            "log_path"
        ) from error
    whole = data.rfind(b"\n") + 1
    records: list[Record] = []
    run = RunState()
    offset = 0
    with no_collection():
        for line in data[:whole].split(b"\n")[:-1]:
            try:
                record = decode(line)
                run.apply(record)
            except (InvalidRecordError, IllegalStepError) as error:
                raise JournalDamagedError(
                    path,
                    line=len(records) + 1,
                    offset=offset,
                    problem=str(error),
                    advice="Nothing was changed. If a newer version wrote it, use that one; else restore the file from "
                    f"a copy, or keep only the records before this one with `truncate -s {offset} {path}`",
                ) from error
            records.append(record)
            offset += len(line) + 1
    return Reading(records, Torn(whole, data[whole:]) if data[whole:] else None, run)


def require_journal(log_path: Path) -> Reading:
    """``read_journal``, for who wants to look at a run that must be there.

    Raises:
        ConfigError: ``log_path`` holds no run.
        JournalDamagedError: see ``read_journal``.
    """
    reading = read_journal(log_path)
    if not reading.records:
        raise ConfigError(f"{log_path / JOURNAL_NAME}: no run is there; give the log_path of a run")
    return reading


class Journal:
    """The one writer of a run's journal."""

    def __init__(
        self,
        log_path: Path,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        observer: Callable[[str], None] = lambda _point: None,
        disk: Disk = DISK,
    ) -> None:
        """Opens the journal of ``log_path``, making it where missing.

        - A record that ``append`` returned is on the disk for ever: it survives SIGKILL and power loss, and no later
          call changes it. One whose append raised has not happened: it is cut off, now or at the next opening.
        - Only records that can be read back and that are legal steps are written, so ``run`` always equals the fold
          of the file.
        - The whole file is judged before a byte is written. A torn last line is copied to
          ``journal.jsonl.torn-<offset>`` and then cut off; ``torn`` tells the caller. Any other damage is refused.
        - This object owns the file while it lives: the caller holds the directory's ``RunLock``, and one thread
          appends.

        ``clock`` stamps the records (an aware UTC time). ``observer`` is called with ``append:before:<kind>`` and
        ``append:after:<kind>``, a seam at which tests kill the process.

        Raises:
            JournalDamagedError: the file is not to be trusted; it is untouched.
            JournalWriteError: it cannot be opened, or the torn line not be kept.
        """
        reading = read_journal(log_path)
        self.path = log_path / JOURNAL_NAME
        self.records = reading.records
        self.run = reading.run
        self.torn = reading.torn
        self._clock = clock
        self._observer = observer
        if self.torn is not None:
            # Kept before it is cut: a kill in between finds it torn again and keeps the same bytes.
            write_durably(self.path.with_name(f"{JOURNAL_NAME}.torn-{self.torn.offset}"), self.torn.data, disk=disk)
        self._file = LineFile(self.path, disk=disk)

    def append(self, kind: Kind, **fields: Any) -> Record:
        """Commits one record: whole line written, synced, folded into ``run``.

        Raises:
            InvalidRecordError, IllegalStepError: the record may not be written; nothing has changed.
            JournalWriteError: it was not stored; this journal takes no more records.
        """
        at = f"{self._clock().replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        line = encode(Record(self.run.num_records, at, kind, fields))
        record = as_read(line)
        self.run.check(record)
        self._observer(f"append:before:{kind}")
        try:
            self._file.append(line[:-1].decode())
            self.run.take(record)
            self.records.append(record)
        except BaseException as error:
            # Whatever interrupts these lines may leave memory behind the file, and another append would repeat a seq.
            self._file.close(f"an append was interrupted ({error!r}); run the same command again")
            raise
        self._observer(f"append:after:{kind}")
        return record

    def close(self) -> None:
        """Takes no more records."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
