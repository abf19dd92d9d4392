"""A disk that fails by plan, as real ones do: full, broken, or taking a part of what it is given."""

import errno
import os
from enum import StrEnum
from pathlib import Path
from threading import Lock

from orchestrator.disk import Disk


class Fault(StrEnum):
    """How a step of the disk fails."""

    EIO = "EIO"
    """The device is broken: nothing is written, synced or renamed."""
    ENOSPC = "ENOSPC"
    """The disk is full: nothing is written, and nothing is from then on."""
    SHORT = "short"
    """The disk takes half of what it is given, and then it is full."""


class FaultyDisk(Disk):
    """A disk on which one step, the ``number``-th (0-based) of those taken in the process, fails as ``fault`` says."""

    def __init__(self, number: int, fault: Fault) -> None:
        """Writes, syncs and renames are all steps; a fault that cannot happen to a step happens to the next it can."""
        self._number = number
        self._fault = fault
        self._steps = 0
        self._failed = False
        self._guard = Lock()

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
        """Raises OSError as planned."""
        if self._fails("write"):
            if self._fault is Fault.SHORT and not self._failed:
                self._failed = True
                return super().write(descriptor, data[: len(data) // 2], path)
            self._raise(path)
        return super().write(descriptor, data, path)

    def sync(self, descriptor: int, path: Path) -> None:
        """Raises OSError as planned."""
        if self._fails("sync"):
            self._raise(path)
        super().sync(descriptor, path)

    def rename(self, source: Path, target: Path) -> None:
        """Raises OSError as planned."""
        if self._fails("rename"):
            self._raise(target)
        super().rename(source, target)

    def _fails(self, step: str) -> bool:
        with self._guard:
            self._steps += 1
            due = self._steps > self._number
        full = self._fault in {Fault.ENOSPC, Fault.SHORT}
        if full and step != "write":
            return False
        return due and (full or not self._failed)

    def _raise(self, path: Path) -> None:
        self._failed = True
        code = errno.EIO if self._fault is Fault.EIO else errno.ENOSPC
        raise OSError(code, os.strerror(code), str(path))
