"""What is done to a child at a named point: observers of appends and requests, beside ``orchestrator.testing.KillAt``.

They travel to the child by pickle and count there; a point's ``occurrence`` is 0-based.
"""

import os
import shutil
import signal
import time
from multiprocessing.synchronize import Semaphore
from pathlib import Path


class KillAtAnyPoint:
    """Kills the process at the ``number``-th point (0-based) that it reaches, whichever that is, and notes which."""

    def __init__(self, number: int, note: Path) -> None:
        """``note`` gets the name of the point."""
        self._left = number
        self._note = note
        self._reached = 0

    def __call__(self, point: str) -> None:
        """Points are reached on several threads; one of them is the last."""
        self._reached += 1
        if self._reached > self._left:
            self._note.write_text(point)
            os.kill(os.getpid(), signal.SIGKILL)


class SignalAt:
    """Sends the process a signal, and notes when."""

    def __init__(self, point: str, occurrence: int, number: signal.Signals, note: Path, *, until_dead: bool = False):
        """``note`` gets the Unix time in seconds; with ``until_dead`` the signal is sent again and again."""
        self._point = point
        self._left = occurrence
        self._number = number
        self._note = note
        self._until_dead = until_dead

    def __call__(self, point: str) -> None:
        """Sends at the occurrence."""
        if point != self._point:
            return
        if self._left == 0:
            self._note.write_text(repr(time.time()))
            os.kill(os.getpid(), self._number)
            while self._until_dead:
                time.sleep(0.02)  # two that are pending together would arrive as one, and nothing tells when one has
                os.kill(os.getpid(), self._number)
        self._left -= 1


class FillDiskAt:
    """Lets no more bytes into an open file, as a full disk does: its descriptor becomes that of ``/dev/full``."""

    def __init__(self, point: str, occurrence: int, path: Path) -> None:
        """Every write to ``path`` from then on is a real ENOSPC."""
        self._point = point
        self._left = occurrence
        self._path = path

    def __call__(self, point: str) -> None:
        """Fills up at the occurrence."""
        if point != self._point:
            return
        if self._left == 0:
            full = os.open("/dev/full", os.O_WRONLY)
            for descriptor in Path("/proc/self/fd").iterdir():
                if descriptor.exists() and descriptor.resolve() == self._path.resolve():
                    os.dup2(full, int(descriptor.name))
        self._left -= 1


class FailAt:
    """Raises a RuntimeError whenever a point is reached."""

    def __init__(self, point: str) -> None:
        """``point`` e.g. ``request:before:forward_backward``."""
        self._point = point

    def __call__(self, point: str) -> None:
        """Raises at the point.

        Raises:
            RuntimeError: always, there.
        """
        if point == self._point:
            raise RuntimeError(f"{point} fails as planned")


class HoldAt:
    """Holds the process at each of some occurrences of a point, until it is let go."""

    def __init__(self, point: str, occurrences: frozenset[int], reached: Semaphore, let_go: Semaphore) -> None:
        """``reached`` is released on arrival, then ``let_go`` is awaited."""
        self._point = point
        self._occurrences = occurrences
        self._seen = 0
        self._reached = reached
        self._let_go = let_go

    def __call__(self, point: str) -> None:
        """Waits at the occurrences."""
        if point != self._point:
            return
        if self._seen in self._occurrences:
            self._reached.release()
            self._let_go.acquire()
        self._seen += 1


class SnapshotAtEveryPoint:
    """Copies the run directory at every point that the process passes: what a kill there would leave."""

    def __init__(self, log_path: Path, snapshots: Path) -> None:
        """``snapshots`` gets a folder a point, named after its number and the point."""
        self._log_path = log_path
        self._snapshots = snapshots
        self._passed = 0

    def __call__(self, point: str) -> None:
        """Takes one; files are linked where they are only ever replaced whole."""
        target = self._snapshots / f"{self._passed:04d}-{point.replace(':', '-')}"
        self._passed += 1
        while self._log_path.is_dir() and not target.exists():
            try:
                shutil.copytree(self._log_path, target, copy_function=self._copy)
            except (shutil.Error, FileNotFoundError):  # another thread has just given a file its name
                shutil.rmtree(target)

    def _copy(self, source: str, target: str) -> None:
        copy = os.link if source.startswith(f"{self._log_path}/local/") else shutil.copyfile
        copy(source, target)
