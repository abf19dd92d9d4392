"""The system calls that make bytes durable, in one place: every durable write of a run goes through a ``Disk``."""

import errno
import os
from pathlib import Path

from orchestrator.errors import JournalWriteError

FOLDER_MODE = 0o700


class Disk:
    """The machine's disk. A run is given one, so that tests can fill it up, break it, or die in the middle of a write.

    ``path`` tells whose bytes they are; it is not opened.
    """

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
        """Writes what the operating system takes of ``data``; the number of bytes. Raises OSError."""
        del path
        return os.write(descriptor, data)

    def sync(self, descriptor: int, path: Path) -> None:
        """Returns once the bytes written, or the folder's entries, survive a power cut. Raises OSError."""
        del path
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Gives a file or folder its name, in place of a file that has it. Raises OSError."""
        source.replace(target)


DISK = Disk()


def make_folder(folder: Path, *, disk: Disk = DISK) -> None:
    """Makes ``folder`` and its parents (mode 0700) where missing; each of them survives a power cut. Raises OSError."""
    if not folder.is_dir():
        make_folder(folder.parent, disk=disk)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        sync_folder(folder.parent, disk=disk)


def sync_folder(folder: Path, *, disk: Disk = DISK) -> None:
    """Returns once the names in ``folder`` survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.sync(descriptor, folder)
    finally:
        os.close(descriptor)


def write_error(path: Path, error: OSError) -> JournalWriteError:
    """The error that a failed step of the disk is told as: which file, why, and what to do."""
    name = errno.errorcode.get(error.errno or 0, "unknown error")
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    remedy = "Free some space" if full else "See to the disk and its permissions"
    return JournalWriteError(
        f"{path}: could not be written: {name}: {error.strerror}. {remedy}, then run the same command again"
    )
