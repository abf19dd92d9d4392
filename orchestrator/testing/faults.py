"""A disk that fails by plan, as real ones do: full, broken, or taking a part of what it is given."""

import errno
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Literal

from orchestrator.disk import Disk

Step = Literal["write", "sync", "rename"]
Plan = Callable[[Step, Path], bool]
"""Whether this step, taken for that path, is the one to fail; asked for each that can, until one is."""


class Fault(StrEnum):
    """How a step of the disk fails."""

    EIO = "EIO"
    """The device did not do it, this once: nothing is written, synced or renamed."""
    ENOSPC = "ENOSPC"
    """The disk is full: nothing is written, now or later."""
    SHORT = "short"
    """The disk takes half of what it is given, and is full."""


class AtStep:
    """The plan of failing at the ``number``-th step (0-based) of the process."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, _step: Step, _path: Path) -> bool:
        """Counts one step."""
        self._left -= 1
        return self._left < 0


class FaultyDisk(Disk):
    """A disk on which one step fails as ``fault`` says: any step on a broken device, a write on a full one."""

    def __init__(self, fault: Fault, plan: Plan) -> None:
        """``plan`` says when; threads may share the disk."""
        self._fault = fault
        self._plan = plan
        self._struck = False
        self._halved = False

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
        """Raises OSError as planned."""
        if data and self._fails("write", path):  # nothing fits anywhere
            if self._fault is Fault.SHORT and not self._halved:
                self._halved = True
                return super().write(descriptor, data[: len(data) // 2], path)
            self._raise(path)
        return super().write(descriptor, data, path)

    def sync(self, descriptor: int, path: Path) -> None:
        """Raises OSError as planned."""
        if self._fails("sync", path):
            self._raise(path)
        super().sync(descriptor, path)

    def rename(self, source: Path, target: Path) -> None:
        """Raises OSError as planned."""
        if self._fails("rename", target):
            self._raise(target)
        super().rename(source, target)

    def _fails(self, step: Step, path: Path) -> bool:
        if self._fault is not Fault.EIO and step != "write":
            return False
        if self._struck:
            return self._fault is not Fault.EIO
        self._struck = self._plan(step, path)
        return self._struck

    def _raise(self, path: Path) -> None:
        code = errno.EIO if self._fault is Fault.EIO else errno.ENOSPC
        raise OSError(code, os.strerror(code), str(path))
