"""Laws of the journal file: what was acknowledged stays, what was torn is cut, all else is refused untouched."""

import gc
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import pytest
from journal import walk
from journal.walk import advance, advance_to, next_record, state_entered, transition

import orchestrator
from orchestrator.errors import ConfigError, JournalDamagedError, JournalWriteError
from orchestrator.journal.durable import LineFile
from orchestrator.journal.log import JOURNAL_NAME, Journal, Torn, read_journal, require_journal
from orchestrator.journal.records import InvalidRecordError, Kind, Record, encode
from orchestrator.journal.recovery import IllegalStepError, RunState, fold
from orchestrator.names import State


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def lines(log_path: Path) -> list[bytes]:
    """The lines, newlines included, of a good journal of 8 records on the disk."""
    with Journal(log_path) as journal:
        advance(journal, 8)
    return (log_path / JOURNAL_NAME).read_bytes().splitlines(keepends=True)


def refusal(log_path: Path) -> JournalDamagedError:
    """The refusal that both the reader and the writer give, the file being left alone."""
    before = (log_path / JOURNAL_NAME).read_bytes()
    with pytest.raises(JournalDamagedError) as by_reader:
        read_journal(log_path)
    with pytest.raises(JournalDamagedError) as by_writer:
        Journal(log_path)
    assert str(by_reader.value) == str(by_writer.value)
    assert [path.name for path in log_path.iterdir()] == [JOURNAL_NAME]
    assert (log_path / JOURNAL_NAME).read_bytes() == before
    return by_writer.value


def test_a_new_journal_is_empty_and_private(log_path: Path) -> None:
    assert read_journal(log_path).records == []
    assert not log_path.exists(), "reading has written"
    with Journal(log_path) as journal:
        assert (journal.records, journal.torn, journal.run) == ([], None, fold([]))
    assert stat.S_IMODE((log_path / JOURNAL_NAME).stat().st_mode) == 0o600


def test_what_is_appended_is_there_at_every_opening(log_path: Path) -> None:
    appended: list[Record] = []
    for _ in range(6):
        with Journal(log_path) as journal:
            assert journal.records == appended
            appended += advance(journal, 7)
            assert journal.run == fold(appended) == read_journal(log_path).run
    assert [record.seq for record in appended] == list(range(42))
    assert read_journal(log_path).records == appended


def test_who_wants_to_look_at_a_run_is_told_that_there_is_none(log_path: Path, lines: list[bytes]) -> None:
    assert len(require_journal(log_path).records) == len(lines)
    for nothing in (log_path / "missing", log_path.parent / "other"):
        with pytest.raises(ConfigError, match=r"journal\.jsonl: no run is there; give the log_path of a run"):
            require_journal(nothing)
        assert not nothing.exists()


def test_records_are_stamped_by_the_clock(log_path: Path) -> None:
    with Journal(log_path, clock=lambda: datetime(2026, 11, 30, 11, 2, 3, 45, UTC)) as journal:
        assert advance(journal, 1)[0].at == "2026-11-30T11:02:03.000045Z"


def test_the_observer_sees_each_append_before_and_after_it_is_on_the_disk(log_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    journal = Journal(log_path, observer=lambda point: seen.append((point, len(read_journal(log_path).records))))
    advance(journal, 2)
    assert seen == [
        ("append:before:run_started", 0),
        ("append:after:run_started", 1),
        ("append:before:process_started", 1),
        ("append:after:process_started", 2),
    ]


def test_h1_a_torn_last_line_is_cut_off_kept_aside_and_told(log_path: Path, lines: list[bytes]) -> None:
    path, good, torn = log_path / JOURNAL_NAME, b"".join(lines[:7]), b'{"v":1,"seq":7,"kind":"tran'
    path.write_bytes(good + torn)
    reading = read_journal(log_path)
    assert (len(reading.records), reading.torn) == (7, Torn(len(good), torn))
    assert path.read_bytes() == good + torn, "reading has written"

    with Journal(log_path) as journal:
        assert journal.torn == Torn(len(good), torn)
        assert len(journal.records) == 7
        assert (log_path / f"{JOURNAL_NAME}.torn-{len(good)}").read_bytes() == torn
        [record] = advance(journal, 1)
    assert record.seq == 7
    with Journal(log_path) as journal:
        assert journal.torn is None
        assert [record.seq for record in journal.records] == list(range(8))
    assert path.read_bytes().startswith(good)


def test_h2_a_damaged_line_is_refused_with_its_place_and_the_file_left_alone(
    log_path: Path, lines: list[bytes]
) -> None:
    (log_path / JOURNAL_NAME).write_bytes(b"".join([*lines[:2], b"{bad\n", *lines[3:]]))
    error = refusal(log_path)
    offset = len(lines[0] + lines[1])
    assert (error.line, error.offset, error.exit_code) == (3, offset, 3)
    assert f"{JOURNAL_NAME}, line 3 (byte {offset}): not JSON" in str(error)
    assert f"truncate -s {offset} " in str(error)


def test_a_journal_cut_at_any_byte_of_its_last_three_records_gives_the_records_before_the_cut(
    log_path: Path, lines: list[bytes]
) -> None:
    path, whole = log_path / JOURNAL_NAME, b"".join(lines)
    expected = read_journal(log_path).records
    for cut in reversed(range(len(b"".join(lines[:-3])), len(whole))):
        os.truncate(path, cut)
        num_whole = whole[:cut].count(b"\n")
        torn = whole[:cut].split(b"\n")[-1]
        reading = read_journal(log_path)
        assert reading.records == expected[:num_whole]
        assert reading.torn == (Torn(cut - len(torn), torn) if torn else None)


@pytest.mark.parametrize("missing_bytes", [*range(1, 12), 20, 50, 100, 150, 200, 300])
def test_a_cut_journal_goes_on_after_the_records_before_the_cut(
    log_path: Path, lines: list[bytes], missing_bytes: int
) -> None:
    whole = b"".join(lines)
    expected = read_journal(log_path).records[: whole[:-missing_bytes].count(b"\n")]
    os.truncate(log_path / JOURNAL_NAME, len(whole) - missing_bytes)
    with Journal(log_path) as journal:
        assert journal.records == expected
        appended = advance(journal, 2)
    assert read_journal(log_path).records == expected + appended


def test_a_journal_with_any_bit_of_its_last_record_flipped_is_never_believed(
    log_path: Path, lines: list[bytes]
) -> None:
    path, start = log_path / JOURNAL_NAME, len(b"".join(lines[:-1]))
    expected = read_journal(log_path).records[:-1]
    for bit in range(8 * len(lines[-1])):
        damaged = bytearray(lines[-1])
        damaged[bit // 8] ^= 1 << bit % 8
        with path.open("r+b") as file:  # in place: rewriting the whole file costs the disk more than the test is worth
            file.seek(start)
            file.write(damaged)
        if damaged.endswith(b"\n"):
            assert refusal(log_path).line == 8
        else:  # without its newline the record counts as never acknowledged
            reading = read_journal(log_path)
            assert (reading.records, reading.torn) == (expected, Torn(start, bytes(damaged)))


@pytest.mark.parametrize("line", range(1, 8))
@pytest.mark.parametrize("tail", [b"", b'{"v":1,"seq":8,"ki'])
def test_damage_before_the_last_line_is_refused_whatever_the_tail(
    log_path: Path, lines: list[bytes], line: int, tail: bytes
) -> None:
    path = log_path / JOURNAL_NAME
    middle = len(lines[line - 1]) // 2
    damaged = lines[line - 1][:middle] + b"#" + lines[line - 1][middle + 1 :]
    path.write_bytes(b"".join([*lines[: line - 1], damaged, *lines[line:]]) + tail)
    assert refusal(log_path).line == line


def gap(lines: list[bytes]) -> bytes:
    return b"".join([*lines[:4], *lines[5:]])


def repeated(lines: list[bytes]) -> bytes:
    return b"".join([*lines[:5], lines[4], *lines[5:]])


def resigned(old: bytes, new: bytes) -> Callable[[list[bytes]], bytes]:
    """Line 5 with other content and a right crc."""

    def change(lines: list[bytes]) -> bytes:
        body = lines[4].replace(old, new).partition(b',"crc":')[0] + b"}"
        assert old in lines[4]
        return b"".join([*lines[:4], body[:-1] + b',"crc":"%08x"}\n' % crc32(body), *lines[5:]])

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (gap, "seq is 5, expected 4"),
        (repeated, "seq is 4, expected 5"),
        (lambda lines: b"".join([*lines[:4], b"\n", *lines[4:]]), "not JSON"),
        (resigned(b'{"v":1', b'{"v":2'), "format v 2, newer than the v 1 that this program reads"),
        (resigned(b'"state_entered"', b'"state_exited"'), "unknown kind 'state_exited'"),
        (resigned(b'"attempt":0', b'"attempt":1'), "attempt is 1, expected 0"),
        (resigned(b'"batch":0', b'"batch":0,"more":1'), "unknown fields ['more']"),
    ],
)
def test_a_record_that_must_not_stand_there_is_refused(
    log_path: Path, lines: list[bytes], change: Callable[[list[bytes]], bytes], problem: str
) -> None:
    (log_path / JOURNAL_NAME).write_bytes(change(lines))
    error = refusal(log_path)
    assert problem in str(error)
    assert (error.line, error.offset) == ((6 if change is repeated else 5), len(b"".join(lines[: error.line - 1])))


def test_an_illegal_or_unwritable_record_is_refused_before_it_reaches_the_file(log_path: Path) -> None:
    journal = Journal(log_path)
    advance(journal, 3)
    before = (log_path / JOURNAL_NAME).read_bytes(), fold(journal.records)
    with pytest.raises(IllegalStepError, match=r"record 3 \(transition\): dest is Log, expected MaybeEvaluate"):
        journal.append(Kind.TRANSITION, **transition(journal.run, dest=State.LOG))
    with pytest.raises(InvalidRecordError, match="no JSON number"):
        journal.append(Kind.TRANSITION, **transition(journal.run, result={"loss": float("nan")}))
    assert ((log_path / JOURNAL_NAME).read_bytes(), journal.run) == before
    advance(journal, 10)
    assert read_journal(log_path).run == journal.run


def test_h20_a_full_disk_stops_the_run_and_the_next_process_goes_on_where_it_stood(log_path: Path) -> None:
    journal = Journal(log_path)
    run = advance_to(journal, 1, State.TRAIN_STEP)
    records = list(journal.records)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file._descriptor)
    with pytest.raises(JournalWriteError, match=r"ENOSPC.*Free some space.*same command") as caught:
        journal.append(Kind.STATE_ENTERED, **state_entered(run))
    assert caught.value.exit_code == 1
    assert (journal.records, journal.run) == (records, fold(records)), "the machine has moved"
    with pytest.raises(JournalWriteError, match="takes no more lines"):
        advance(journal, 1)
    os.close(full)

    with Journal(log_path) as journal:
        assert (journal.run.batch, journal.run.state, journal.run.entries) == (1, State.TRAIN_STEP, 0)
        advance(journal, 5)
    assert read_journal(log_path).records[: len(records)] == records


def interrupt_after(function: Callable[..., None]) -> Callable[..., None]:
    def interrupted(*arguments: object) -> None:
        function(*arguments)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.parametrize(("owner", "name"), [(os, "fsync"), (LineFile, "append"), (RunState, "take")])
def test_an_append_interrupted_after_its_write_is_the_last(
    log_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """In the window the file may be a record ahead of the memory: another append would write the same seq again."""
    journal = Journal(log_path)
    advance(journal, 3)
    monkeypatch.setattr(owner, name, interrupt_after(getattr(owner, name)))
    with pytest.raises(KeyboardInterrupt):
        advance(journal, 1)
    monkeypatch.undo()
    with pytest.raises(JournalWriteError, match=r"takes no more lines.*KeyboardInterrupt"):
        advance(journal, 1)
    with Journal(log_path) as journal:
        advance(journal, 3)
    assert read_journal(log_path).records == journal.records


def test_a_killed_writer_loses_no_acknowledged_record(log_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(orchestrator.__file__).parents[1])}
    acknowledged: list[str] = []
    for kill in range(4):
        command = [sys.executable, walk.__file__, str(log_path)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            acknowledged += [writer.stdout.readline() for _ in range(5 + 40 * kill)]
            writer.send_signal(signal.SIGKILL)
            acknowledged += writer.stdout.read().splitlines(keepends=True)
        stored = {f"{record.seq} {record.at} {record.kind}\n" for record in read_journal(log_path).records}
        assert set(acknowledged) <= stored
    assert len(acknowledged) >= 5 + 45 + 85 + 125


def test_a_long_journal_is_read_in_time_proportional_to_its_length(log_path: Path) -> None:
    """Ten times as long takes ten times as much processor time; were it the square, a hundred times."""
    run, written = fold([]), []
    for seq in range(20_000):
        kind, fields = next_record(run)
        record = Record(seq, "2026-11-30T11:02:03.123456Z", kind, fields)
        run.apply(record)
        written.append(encode(record))
    log_path.mkdir()

    def processor_seconds(num_records: int) -> float:
        (log_path / JOURNAL_NAME).write_bytes(b"".join(written[:num_records]))
        began = time.process_time()
        assert len(read_journal(log_path).records) == num_records
        return time.process_time() - began

    gc.disable()  # it goes through all that the tests have imported, which is not the journal's
    try:
        shorter, longer = (min(processor_seconds(length) for _ in range(3)) for length in (2_000, 20_000))
    finally:
        gc.enable()
    assert longer < 40 * shorter
    assert read_journal(log_path).run == run
