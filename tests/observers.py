"""What is done to a child at a named point: observers of appends and requests, beside ``orchestrator.testing.KillAt``.

They travel to the child by pickle and count there; a point's ``occurrence`` is 0-based.
"""

import os
import shutil
import signal
import time
from multiprocessing.synchronize import Semaphore
from pathlib import Path

from orchestrator.disk import Disk
from orchestrator.names import CYCLE, State
from orchestrator.testing.points import write_whole


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


class QuoteAt:
    """Raises an error that quotes a text, and whose cause does, the ``occurrence``-th time that a point is reached."""

    def __init__(self, point: str, occurrence: int, text: str) -> None:
        """``text`` is what must not be read."""
        self._point = point
        self._left = occurrence
        self._text = text

    def __call__(self, point: str) -> None:
        """Raises at the occurrence.

        Raises:
            RuntimeError: there.
        """
        if point != self._point:
            return
        self._left -= 1
        if self._left == -1:
            raise RuntimeError(f"cannot do {self._text}") from KeyError(self._text)


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


class KillAtNew:
    """Kills the process at the first point that has not been tried in the machine's state, and notes both."""

    def __init__(self, tried: frozenset[tuple[str, str]], state: State, note: Path) -> None:
        """``state`` is the one that the journal is in; before the process enters it, it is in ``start-up``."""
        self._tried = tried
        self._journaled = state
        self._state: str = "start-up"
        self._note = note

    def __call__(self, point: str) -> None:
        """Follows the machine by its appends."""
        if point == "append:after:state_entered":
            self._state = self._journaled.value
        if (self._state, point) not in self._tried:
            write_whole(self._note, f"{self._state} {point}")
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "append:after:transition":
            self._journaled = CYCLE[(CYCLE.index(self._journaled) + 1) % len(CYCLE)]
            self._state = "between-states"


class AtNewStep:
    """A plan for ``FaultyDisk``: to fail at the first step that has not been tried on its part of the run directory."""

    def __init__(self, tried: frozenset[tuple[str, str]], log_path: Path, note: Path) -> None:
        """``note`` gets step and part."""
        self._tried = tried
        self._log_path = log_path
        self._note = note

    def __call__(self, step: str, path: Path) -> bool:
        """Whether this one is new."""
        part = path.relative_to(self._log_path).parts[0] if path != self._log_path else "folder"
        if (step, part) in self._tried:
            return False
        self._note.write_text(f"{step} {part}")
        return True


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


class NoteSteps(Disk):
    """A disk that writes down each of its steps, a line each: ``write rollouts/000000.train.jsonl``."""

    def __init__(self, log_path: Path, note: Path) -> None:
        """``note`` is appended to."""
        self._log_path = log_path
        self._note = note

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
        """Notes it before, so that what has to come before it does."""
        self._tell("write", path)
        return super().write(descriptor, data, path)

    def sync(self, descriptor: int, path: Path) -> None:
        """Notes it after it has succeeded."""
        super().sync(descriptor, path)
        self._tell("sync", path)

    def rename(self, source: Path, target: Path) -> None:
        """Notes the name that is given."""
        super().rename(source, target)
        self._tell("rename", target)

    def _tell(self, step: str, path: Path) -> None:
        if path.is_relative_to(self._log_path):
            with self._note.open("ab") as file:
                file.write(f"{step} {path.relative_to(self._log_path)}\n".encode())
