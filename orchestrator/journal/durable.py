"""Files that survive a kill or a power cut, replaced whole or appended by lines, and the lock of a run directory."""

import errno
import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from orchestrator.errors import ConfigError, JournalWriteError, LockedError, SideFileDamagedError

FILE_MODE = 0o600
FOLDER_MODE = 0o700
LOCK_NAME = "lock"


def write_durably(path: Path, data: bytes) -> None:
    """Makes ``path`` hold ``data``: a kill at any moment leaves the old content or the new, never a mixture.

    Missing folders are made (mode 0700); the file gets mode 0600.

    Raises:
        JournalWriteError: it could not be written; ``path`` is as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _make_folder(path.parent)
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # a left-over temporary file is harmless; the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise _write_error(path, error) from error


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of the file's bytes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class LineFile:
    """A file of text lines, each of them durable when ``append`` returns.

    ``append`` writes a whole line with one ``write`` and syncs it, so a kill leaves at most one torn line, the last,
    which was never acknowledged. Opening cuts that torn line off. A failed write or sync is final: after a failed
    ``fsync`` the kernel may forget what it could not write, so a second one proves nothing. The line is then cut back,
    and this object takes no more lines; a newly opened one may.

    One process at a time may have the file open (the caller holds the ``RunLock``); its threads may share the object.
    """

    def __init__(self, path: Path) -> None:
        """Opens ``path``, making it (mode 0600) and its folders (0700) where missing.

        Raises:
            SideFileDamagedError: a line is not UTF-8; the file is untouched.
            JournalWriteError: the file cannot be made, opened or cut.
        """
        self.path = path
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data.rfind(b"\n") + 1
            self.lines = _decode_lines(path, data[:whole])
            """The intact lines found at opening, without their newlines; ``append`` adds nothing here."""
            self.torn_bytes = data[whole:]
            """What followed the last newline at opening and was cut off; empty when nothing was torn."""
            _make_folder(path.parent)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
            if self.torn_bytes:
                os.ftruncate(self._descriptor, whole)
                os.fsync(self._descriptor)
            _sync_folder(path.parent)  # also for a file found: its maker may have died before this line
        except OSError as error:
            raise _write_error(path, error) from error
        self._size_bytes = whole
        self._closed_because: str | None = None
        self._guard = threading.Lock()

    @staticmethod
    def read_lines(path: Path) -> list[str]:
        """The intact lines of ``path`` without writing to it: a torn last line is left out, a missing file has none.

        Raises:
            SideFileDamagedError: a line is not UTF-8.
        """
        data = path.read_bytes() if path.exists() else b""
        return _decode_lines(path, data[: data.rfind(b"\n") + 1])

    def append(self, line: str) -> None:
        """Adds one line; once this returns it outlives the process and the machine.

        Raises:
            ValueError: ``line`` holds a newline.
            JournalWriteError: the line was not stored, or the file was closed, by the caller or by an earlier failure.
        """
        if "\n" in line:
            raise ValueError(f"{self.path}: a line to append holds a newline: {line[:80]!r}")
        data = f"{line}\n".encode()
        with self._guard:
            if self._closed_because is not None:
                raise JournalWriteError(f"{self.path}: takes no more lines: {self._closed_because}")
            try:
                _write_whole(self._descriptor, data)
            except BaseException as error:  # an interrupt here leaves the line in doubt as well
                with suppress(OSError):  # what cannot be cut back is torn, and the next opening cuts it
                    os.ftruncate(self._descriptor, self._size_bytes)
                self._close(f"an earlier append failed ({error!r}); run the same command again")
                if isinstance(error, OSError):
                    raise _write_error(self.path, error) from error
                raise
            self._size_bytes += len(data)

    def close(self, because: str = "it was closed") -> None:
        """Takes no more lines, and says ``because`` to who tries; what was appended is already safe."""
        with self._guard:
            self._close(because)

    def _close(self, because: str) -> None:
        if self._closed_because is None:
            self._closed_because = because
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunLock:
    """The right to write in a run directory: one process at a time has it, and death gives it back.

    The lock belongs to the open file ``log_path/lock`` (``flock``), so not even SIGKILL leaves it behind; what the file
    says, pid and host, only serves the other process's message. Child processes never hold it.
    """

    PATIENCE_SECONDS = 0.2
    """A holder killed a moment ago may still be dying, and a new one still be writing its name."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Use ``acquire``."""
        self.path = path
        self._descriptor: int | None = descriptor
        # A forked worker shares the open file, so one that outlives a killed parent would keep the run locked.
        os.register_at_fork(after_in_child=self.release)

    @classmethod
    def acquire(cls, log_path: Path) -> Self:
        """Takes the lock of ``log_path``, making the directory (mode 0700) where missing.

        Raises:
            LockedError: another process has it; the message names its pid and host.
            ConfigError: the directory cannot be made or written, or its file system has no locks.
        """
        path = log_path / LOCK_NAME
        try:
            _make_folder(log_path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise ConfigError(f"log_path={log_path}: {error}; give a directory that can be made and written") from error
        try:
            _flock_patiently(descriptor, cls.PATIENCE_SECONDS)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        except BlockingIOError as error:
            os.close(descriptor)
            raise LockedError(
                f"{log_path}: {_holder(path)} works on this run; wait for it, stop it, or give another log_path"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise ConfigError(
                f"{path}: cannot be locked: {error}; give a log_path on a local disk with free space"
            ) from error
        return cls(path, descriptor)

    @staticmethod
    def holder(log_path: Path) -> str | None:
        """Who works on ``log_path``, e.g. ``process 41 on ada``; None: nobody does. Takes nothing from anybody."""
        path = log_path / LOCK_NAME
        if not path.exists():
            return None
        with path.open("rb") as file:
            try:
                # Shared and given back at once; a process that starts meanwhile is patient for longer than that.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _holder(path)
        return None

    def release(self) -> None:
        """Gives the lock back; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _flock_patiently(descriptor: int, patience_seconds: float) -> None:
    give_up = time.monotonic() + patience_seconds
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"another process ({path} does not name it)"


def _decode_lines(path: Path, data: bytes) -> list[str]:
    try:
        # Not splitlines: U+2028 and its like may stand inside a JSON string.
        return data.decode().split("\n")[:-1]
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SideFileDamagedError(
            f"{path}, line {line} (byte {error.start}): not UTF-8 ({error.reason}). "
            "Nothing was changed; restore the file from a copy"
        ) from error


def _write_whole(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")
    os.fsync(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(path: Path, error: OSError) -> JournalWriteError:
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    remedy = "Free some space" if full else "See to the disk and its permissions"
    return JournalWriteError(
        f"{path}: could not be written: {name}: {error.strerror}. {remedy}, then run the same command again"
    )
