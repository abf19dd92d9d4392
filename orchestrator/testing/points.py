"""The named points of a run, at which it can be killed: appends, requests and the steps of every durable write.

A point is a text such as ``append:after:transition``, ``request:before:optim_step`` or ``write:middle:rollouts``, and
an observer is called with it by the process that reaches it. Observers travel to that process by pickle, and count
there.
"""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from orchestrator.disk import Disk

Observer = Callable[[str], None]
"""Is told the name of each point as it is reached, on the thread that reaches it."""


def watch_nothing(_point: str) -> None:
    """The observer of a run that nothing is done to."""


class KillAt:
    """Kills the process, as ``kill -9`` does, the ``occurrence``-th time (0-based) that ``point`` is reached."""

    def __init__(self, point: str, occurrence: int = 0) -> None:
        """``point`` is e.g. ``append:after:state_entered`` or ``request:before:optim_step``."""
        self._point = point
        self._left = occurrence

    def __call__(self, point: str) -> None:
        """Says that ``point`` is reached."""
        if point == self._point:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


class KillAtNumber:
    """Kills the process at the ``number``-th point (0-based) that it reaches, whichever that is, and notes which."""

    def __init__(self, number: int, note: Path) -> None:
        """``note`` gets the name of the point."""
        self._left = number
        self._note = note

    def __call__(self, point: str) -> None:
        """Points are reached on several threads; one of them is the last."""
        self._left -= 1
        if self._left < 0:
            write_whole(self._note, point)
            os.kill(os.getpid(), signal.SIGKILL)


def write_whole(note: Path, text: str) -> None:
    """Writes ``note`` in one step: a thread that is killed by another one's point leaves no half of its own."""
    half = note.with_name(f"{note.name}.{threading.get_ident()}")
    half.write_text(text)
    half.replace(note)


class NotePoints:
    """Writes down every point that a process reaches, a line each."""

    def __init__(self, note: Path) -> None:
        """``note`` is appended to."""
        self._note = note

    def __call__(self, point: str) -> None:
        """Notes ``point``."""
        with self._note.open("ab") as file:
            file.write(f"{point}\n".encode())


class ObservedDisk(Disk):
    """A disk whose every step is a point, named after the part of the run directory that it is taken in.

    ``write:before``, ``write:middle`` (half of the bytes are in the file), ``write:after``, ``rename:before`` and
    ``rename:after``, followed by e.g. ``:rollouts`` or ``:journal.jsonl``. There is none around a sync: to a process
    that dies, what it has written is written.
    """

    def __init__(self, log_path: Path, observer: Observer) -> None:
        """``log_path`` is the run directory, absolute."""
        self._log_path = log_path
        self._observer = observer

    def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
        """Writes in two halves, so that there is a middle."""
        part = self._part(path)
        self._observer(f"write:before:{part}")
        half = super().write(descriptor, data[: len(data) // 2], path)
        self._observer(f"write:middle:{part}")
        rest = super().write(descriptor, data[half:], path)
        self._observer(f"write:after:{part}")
        return half + rest

    def rename(self, source: Path, target: Path) -> None:
        """Renames between two points."""
        part = self._part(target)
        self._observer(f"rename:before:{part}")
        super().rename(source, target)
        self._observer(f"rename:after:{part}")

    def _part(self, path: Path) -> str:
        # What is kept aside of a torn journal has the byte in its name, and would be a new part at every tear.
        return path.relative_to(self._log_path).parts[0].partition(".torn-")[0]
