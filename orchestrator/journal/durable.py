"""Files that survive a kill or a power cut: replaced whole, or appended line by line."""

import errno
import hashlib
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from orchestrator.disk import DISK, Disk, make_folder, sync_folder, write_error
from orchestrator.errors import JournalWriteError, SideFileDamagedError

FILE_MODE = 0o600


def write_durably(path: Path, data: bytes, *, disk: Disk = DISK) -> None:
    """Makes ``path`` hold ``data``: a kill at any moment leaves the old content or the new, never a mixture.

    Missing folders are made (mode 0700); the file gets mode 0600.

    Raises:
        JournalWriteError: it could not be written; ``path`` is as it was.
    """
    # One writer at a time, so one name: what a kill leaves under it is gone with the next write.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        make_folder(path.parent, disk=disk)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            _write_whole(disk, descriptor, data, path)
        finally:
            os.close(descriptor)
        disk.rename(temporary, path)
        sync_folder(path.parent, disk=disk)
    except OSError as error:
        with suppress(OSError):  # a left-over temporary file is harmless; the first error is the one to tell
            temporary.unlink(missing_ok=True)
        raise write_error(path, error) from error


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of the file's bytes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class LineFile:
    """A file of text lines, each of them durable when ``append`` returns.

    ``append`` writes whole lines with one ``write`` and one sync, so a kill leaves at most one torn line, the last,
    which was never acknowledged. Opening cuts that torn line off. A failed write or sync is final: after a failed
    ``fsync`` the kernel may forget what it could not write, so a second one proves nothing. The line is then cut back,
    and this object takes no more lines; a newly opened one may.

    One process at a time may have the file open (the caller holds the ``RunLock``); its threads may share the object.
    """

    def __init__(self, path: Path, *, disk: Disk = DISK) -> None:
        """Opens ``path``, making it (mode 0600) and its folders (0700) where missing.

        Raises:
            SideFileDamagedError: a line is not UTF-8; the file is untouched.
            JournalWriteError: the file cannot be made, opened or cut.
        """
        self.path = path
        self._disk = disk
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data.rfind(b"\n") + 1
            self.lines = _decode_lines(path, data[:whole])
            """The intact lines found at opening, without their newlines; ``append`` adds nothing here."""
            self.torn_bytes = data[whole:]
            """What followed the last newline at opening and was cut off; empty when nothing was torn."""
            make_folder(path.parent, disk=disk)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
            if self.torn_bytes:
                os.ftruncate(self._descriptor, whole)
                disk.sync(self._descriptor, path)
            sync_folder(path.parent, disk=disk)  # also for a file found: its maker may have died before this line
        except OSError as error:
            raise write_error(path, error) from error
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

    def append(self, *lines: str) -> None:
        """Adds lines; once this returns they outlive the process and the machine.

        Raises:
            ValueError: one of them holds a newline.
            JournalWriteError: they were not stored, or the file was closed, by the caller or by an earlier failure.
        """
        for line in lines:
            if "\n" in line:
                raise ValueError(f"{self.path}: a line to append holds a newline: {line[:80]!r}")
        data = "".join(f"{line}\n" for line in lines).encode()
        with self._guard:
            if self._closed_because is not None:
                raise JournalWriteError(f"{self.path}: takes no more lines: {self._closed_because}")
            status = os.fstat(self._descriptor)
            found_bytes, regular = status.st_size, stat.S_ISREG(status.st_mode)
            if regular and status.st_nlink == 0:
                self._close("it was deleted")
                raise JournalWriteError(
                    f"{self.path}: was deleted while this process had it open, so nothing more is written to it. "
                    "Restore the run directory from a copy and run the same command again, or start a new run"
                )
            if regular and found_bytes != self._size_bytes:
                self._close("another process has written to it")
                raise JournalWriteError(
                    f"{self.path}: has {found_bytes} bytes, expected {self._size_bytes}: another process writes to it. "
                    "Stop the other one, then run the same command again"
                )
            try:
                _write_whole(self._disk, self._descriptor, data, self.path)
            except BaseException as error:  # an interrupt here leaves the line in doubt as well
                with suppress(OSError):  # what cannot be cut back is torn, and the next opening cuts it
                    os.ftruncate(self._descriptor, self._size_bytes)
                self._close(f"an earlier append failed ({error!r}); run the same command again")
                if isinstance(error, OSError):
                    raise write_error(self.path, error) from error
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


def _write_whole(disk: Disk, descriptor: int, data: bytes, path: Path) -> None:
    written = disk.write(descriptor, data, path)
    if written != len(data):
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes were taken")
    disk.sync(descriptor, path)
