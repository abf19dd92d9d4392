"""The lock of a run directory: one process at a time works on a run, and death gives the lock back."""

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from orchestrator.disk import make_folder
from orchestrator.errors import ConfigError, LockedError
from orchestrator.journal.durable import FILE_MODE

LOCK_NAME = "lock"


class RunLock:
    """The right to write in a run directory: one process at a time has it, and death gives it back.

    The lock belongs to the opened directory itself (``flock``), so not even SIGKILL leaves it behind, and deleting a
    file does not give it away. The file ``lock`` says who holds it, for the other process's message. Child processes
    never hold it.
    """

    PATIENCE_SECONDS = 0.2
    """A holder killed a moment ago may still be dying, and a new one still be writing its name."""

    def __init__(self, path: Path, descriptor: int, *, made_directory: bool) -> None:
        """Use ``acquire``."""
        self.path = path
        self._made_directory = made_directory
        self._descriptor: int | None = descriptor
        # A forked worker shares the open file, so one that outlives a killed parent would keep the run locked.
        os.register_at_fork(after_in_child=self._forget)

    @classmethod
    def acquire(cls, log_path: Path) -> Self:
        """Takes the lock of ``log_path``, making the directory (mode 0700) where missing.

        Raises:
            LockedError: another process has it; the message names its pid and host.
            ConfigError: the directory cannot be made or written, or its file system has no locks.
        """
        path = log_path / LOCK_NAME
        while True:
            made_directory = not log_path.exists()
            try:
                make_folder(log_path)
                descriptor = os.open(log_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # removed between the two, see below
            except OSError as error:
                raise ConfigError(
                    f"log_path={log_path}: {error}; give a directory that can be made and written"
                ) from error
            try:
                _flock_patiently(descriptor, cls.PATIENCE_SECONDS)
                if _is_at(descriptor, log_path):
                    _sign(path)
                    return cls(path, descriptor, made_directory=made_directory)
            except BlockingIOError as error:
                os.close(descriptor)
                raise LockedError(
                    f"{log_path}: {_holder(path)} works on this run; wait for it, stop it, or give another log_path"
                ) from error
            except OSError as error:
                os.close(descriptor)
                raise ConfigError(f"{log_path}: cannot be locked: {error}; give a log_path on a local disk") from error
            # Its last holder removed the directory, which it had made for nothing, while we waited for the lock of it.
            os.close(descriptor)

    @staticmethod
    def holder(log_path: Path) -> str | None:
        """Who works on ``log_path``, e.g. ``process 41 on ada``; None: nobody does. Takes nothing from anybody."""
        if not log_path.is_dir():
            return None
        descriptor = os.open(log_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Shared and given back at once; a process that starts meanwhile is patient for longer than that.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(log_path / LOCK_NAME)
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Gives the lock back and leaves neither its file nor a directory that was made for nothing.

        A second time does nothing.
        """
        if self._descriptor is not None:
            with suppress(OSError):  # while the lock is still ours: afterwards the file may name the next holder
                self.path.unlink()
                if self._made_directory:
                    self.path.parent.rmdir()  # refused where anything is in it, as after every run
            self._forget()

    def _forget(self) -> None:
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


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the opened directory is still the one that ``path`` names."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(path: Path) -> None:
    """Writes who holds the lock; a full disk has no room for that, and it is only for a message."""
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, FILE_MODE)) as file:
            file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['pid']} on {holder['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"another process ({path} does not name it)"
