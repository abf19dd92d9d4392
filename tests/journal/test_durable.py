"""Laws of durable files: whole or not at all, refused after a failure, and one process to a run directory."""

import hashlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchestrator
from orchestrator.disk import Disk, make_folder
from orchestrator.errors import ConfigError, JournalWriteError, LockedError, SideFileDamagedError
from orchestrator.journal.durable import LineFile, sha256_of, write_durably
from orchestrator.journal.lock import RunLock

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(orchestrator.__file__).parents[1])}

HOLD_LOCK = """
import sys
from pathlib import Path
from orchestrator.journal.lock import RunLock
lock = RunLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
print("unharmed", flush=True)
"""

REPLACE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from orchestrator.journal.durable import write_durably
for number in itertools.count():
    write_durably(Path(sys.argv[1]), b"%d" % (number % 10) * 300_000)
    print(number, flush=True)
"""

APPEND_PAST_LIMIT = """
import resource, sys
from pathlib import Path
from orchestrator.errors import JournalWriteError
from orchestrator.journal.durable import LineFile
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
lines = LineFile(Path(sys.argv[1]))
lines.append("a" * 59)
for line in ("b" * 59, "c"):
    try:
        lines.append(line)
    except JournalWriteError as error:
        print(error)
"""


@contextmanager
def script(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that runs ``code`` on ``path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def fill_the_disk(descriptor: int) -> None:
    """From now on the kernel answers ENOSPC to what is written there."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, descriptor)
    os.close(full)


def test_appended_lines_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rollouts" / "lines.jsonl"
    with LineFile(path) as lines:
        assert (lines.lines, lines.torn_bytes) == ([], b"")
        lines.append("first")
        lines.append("")
        lines.append("third, \u2028 still third, \x0b\x85\x1c too\r")
    with LineFile(path) as lines:
        assert lines.lines == ["first", "", "third, \u2028 still third, \x0b\x85\x1c too\r"]
        lines.append("fourth")
    assert LineFile.read_lines(path)[2:] == ["third, \u2028 still third, \x0b\x85\x1c too\r", "fourth"]


def test_files_are_private(tmp_path: Path) -> None:
    LineFile(tmp_path / "run" / "turns" / "lines").close()
    write_durably(tmp_path / "run" / "datums" / "file", b"data")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "run").rglob("*")}
    assert modes == {"turns": 0o700, "lines": 0o600, "datums": 0o700, "file": 0o600}


@given(lines=st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))), data=st.data())
def test_a_file_cut_anywhere_gives_the_lines_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "lines"
    whole = "".join(f"{line}\n" for line in lines).encode()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    expected = lines[: whole[:cut].count(b"\n")]
    kept = sum(len(line.encode()) + 1 for line in expected)

    assert LineFile.read_lines(path) == expected
    assert path.read_bytes() == whole[:cut], "reading has written"
    with LineFile(path) as opened:
        assert opened.lines == expected
        assert opened.torn_bytes == whole[kept:cut]
        opened.append("next")
    assert path.read_bytes() == whole[:kept] + b"next\n"


def test_reading_a_missing_file_gives_no_line_and_makes_nothing(tmp_path: Path) -> None:
    assert LineFile.read_lines(tmp_path / "turns" / "000001.jsonl") == []
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_not_utf8_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"good\nb\xffd\ntorn")
    for read in (LineFile, LineFile.read_lines):
        with pytest.raises(SideFileDamagedError, match=r"lines, line 2 \(byte 6\)"):
            read(path)
    assert path.read_bytes() == b"good\nb\xffd\ntorn"


def test_a_line_with_a_newline_is_not_one_line(tmp_path: Path) -> None:
    with LineFile(tmp_path / "lines") as lines, pytest.raises(ValueError, match="newline"):
        lines.append("one\ntwo")
    assert (tmp_path / "lines").read_bytes() == b""


def test_threads_share_a_line_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with LineFile(path) as lines:

        def append_twenty(name: str) -> None:
            for _ in range(20):
                lines.append(name * 1000)

        threads = [threading.Thread(target=append_twenty, args=(name,)) for name in "abcdefgh"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(LineFile.read_lines(path)) == sorted(name * 1000 for name in "abcdefgh" for _ in range(20))


def test_a_full_disk_is_named_and_ends_the_appending(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    lines = LineFile(path)
    lines.append("safe")
    fill_the_disk(lines._descriptor)
    with pytest.raises(JournalWriteError, match=r"lines: could not be written: ENOSPC.*Free some space") as caught:
        lines.append("lost")
    assert caught.value.exit_code == 1
    with pytest.raises(JournalWriteError, match=r"takes no more lines.*ENOSPC|No space left"):
        lines.append("never tried")
    assert LineFile.read_lines(path) == ["safe"]


def test_a_failed_sync_is_never_retried(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "lines")
    reader, writer = os.pipe()  # takes every write and cannot be synced
    os.dup2(writer, lines._descriptor)
    with pytest.raises(JournalWriteError, match="could not be written: EINVAL"):
        lines.append("written, not synced")
    with pytest.raises(JournalWriteError, match="takes no more lines"):
        lines.append("never tried")
    os.close(writer)
    assert os.read(reader, 100) == b"written, not synced\n"
    os.close(reader)


def test_a_short_write_is_a_failure_and_is_cut_back(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with script(APPEND_PAST_LIMIT, path) as process:
        output, _ = process.communicate(timeout=20)
    first, second = output.splitlines()
    assert "only 40 of 60 bytes were taken" in first
    assert "takes no more lines" in second
    assert path.read_bytes() == b"a" * 59 + b"\n"


def test_a_closed_file_takes_no_line(tmp_path: Path) -> None:
    lines = LineFile(tmp_path / "lines")
    lines.close()
    lines.close()
    with pytest.raises(JournalWriteError, match="it was closed"):
        lines.append("late")


def test_a_write_that_fails_leaves_the_old_content_and_no_litter(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_bytes(b"old")
    with pytest.raises(JournalWriteError, match="folder: could not be written: EISDIR"):
        write_durably(tmp_path / "folder", b"new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "inner"]


def test_a_kill_never_leaves_a_mixture_of_old_and_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for kill in range(3):
        with script(REPLACE_FOR_EVER, path) as process:
            for _ in range(2 + 3 * kill):
                next_line(process)
            process.send_signal(signal.SIGKILL)
            process.wait()
        data = path.read_bytes()
        assert len(data) == 300_000
        assert len(set(data)) == 1


def test_sha256_is_that_of_the_bytes(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"\x00payload\n")
    assert sha256_of(tmp_path / "file") == hashlib.sha256(b"\x00payload\n").hexdigest()
    with pytest.raises(FileNotFoundError):
        sha256_of(tmp_path / "missing")


def test_h18_a_second_process_is_told_who_has_the_run_and_a_kill_frees_it(tmp_path: Path) -> None:
    log_path = tmp_path / "run"
    with script(HOLD_LOCK, log_path) as first:
        assert next_line(first) == "held\n"
        began = time.monotonic()
        with pytest.raises(LockedError, match=rf"run: process {first.pid} on {socket.gethostname()} ") as caught:
            RunLock.acquire(log_path)
        assert time.monotonic() - began < 1
        assert caught.value.exit_code == 3
        assert first.poll() is None
        first.kill()  # not waited for: a third process may come while the first is still dying
        with RunLock.acquire(log_path) as third, pytest.raises(LockedError, match=f"process {os.getpid()} "):
            RunLock.acquire(third.path.parent)
        assert stat.S_IMODE(log_path.stat().st_mode) == 0o700


def test_h18_the_first_process_is_unharmed_by_the_second(tmp_path: Path) -> None:
    with script(HOLD_LOCK, tmp_path) as first:
        assert next_line(first) == "held\n"
        with pytest.raises(LockedError):
            RunLock.acquire(tmp_path)
        with pytest.raises(LockedError):
            RunLock.acquire(tmp_path)
        output, _ = first.communicate("", timeout=20)
        assert (output, first.returncode) == ("unharmed\n", 0)


def test_asking_who_has_a_run_takes_nothing_from_anybody(tmp_path: Path) -> None:
    log_path = tmp_path / "run"
    assert RunLock.holder(log_path) is None
    assert not log_path.exists()
    with script(HOLD_LOCK, log_path) as first:
        assert next_line(first) == "held\n"
        assert RunLock.holder(log_path) == f"process {first.pid} on {socket.gethostname()}"
        first.kill()
        first.wait()
    assert RunLock.holder(log_path) is None
    RunLock.acquire(log_path).release()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path)
    lock.release()
    lock.release()
    RunLock.acquire(tmp_path).release()


def test_children_do_not_hold_the_lock(tmp_path: Path) -> None:
    lock = RunLock.acquire(tmp_path)
    reader, writer = os.pipe()
    forked = os.fork()
    if forked == 0:  # a worker that outlives its parent's hold
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as spawned:
        lock.release()
        RunLock.acquire(tmp_path).release()
        assert (spawned.poll(), os.waitpid(forked, os.WNOHANG)) == (None, (0, 0))
        spawned.communicate(b"\n")
    os.close(writer)
    os.close(reader)
    os.waitpid(forked, 0)


def test_a_run_directory_that_cannot_be_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(ConfigError, match=r"log_path=.*file/run: .*give a directory"):
        RunLock.acquire(tmp_path / "file" / "run")


def test_deleting_the_lock_file_does_not_give_the_run_away(tmp_path: Path) -> None:
    with RunLock.acquire(tmp_path):
        (tmp_path / "lock").unlink()
        with pytest.raises(LockedError):
            RunLock.acquire(tmp_path)
        assert RunLock.holder(tmp_path) is not None
    assert RunLock.holder(tmp_path) is None


def test_a_line_is_refused_once_another_process_has_written_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with LineFile(path) as ours, LineFile(path) as theirs:
        ours.append("1")
        theirs_failed = pytest.raises(JournalWriteError, match="another process")
        with theirs_failed:
            theirs.append("2")
    assert path.read_text() == "1\n"


def test_a_line_is_refused_once_the_file_was_deleted(tmp_path: Path) -> None:
    """A run whose directory is removed under it must not go on spending for a journal that nobody can read."""
    path = tmp_path / "lines.jsonl"
    lines = LineFile(path)
    lines.append("1")
    path.unlink()
    with pytest.raises(JournalWriteError, match=re.escape(f"{path}: was deleted")):
        lines.append("2")
    with pytest.raises(JournalWriteError, match="takes no more lines"):
        lines.append("3")
    assert not path.exists()


def test_two_processes_never_hold_the_lock_of_one_run_however_its_directory_comes_and_goes(tmp_path: Path) -> None:
    """A refused start removes the directory that it made, under the eyes of one who waits for its lock."""
    log_path = tmp_path / "run"
    for _ in range(20):
        first = RunLock.acquire(log_path)
        waiting: list[RunLock] = []
        began = threading.Event()

        def wait(began: threading.Event = began, waiting: list[RunLock] = waiting) -> None:
            began.set()
            waiting.append(RunLock.acquire(log_path))

        thread = threading.Thread(target=wait)
        thread.start()
        began.wait()
        first.release()
        thread.join()
        [second] = waiting
        assert os.path.samestat(os.fstat(second._descriptor or -1), log_path.stat())
        with pytest.raises(LockedError):
            RunLock.acquire(log_path)
        second.release()


def test_a_full_disk_does_not_keep_a_run_from_being_taken_up(tmp_path: Path) -> None:
    """Who holds it is only for a message; what cannot be written later says so itself, resumably."""
    (tmp_path / "lock").symlink_to("/dev/full")
    RunLock.acquire(tmp_path).release()


def test_every_folder_on_the_way_is_synced_into_its_parent(tmp_path: Path) -> None:
    synced: list[Path] = []

    class Recording(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            synced.append(path)
            super().sync(descriptor, path)

    make_folder(tmp_path / "a" / "b" / "c", disk=Recording())
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
