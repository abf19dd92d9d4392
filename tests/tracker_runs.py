"""Runs of fixture D with every tracker, and what is done to them while trackers take their rows."""

import os
import signal
import sys
import threading
from multiprocessing.synchronize import Semaphore

from processes import Child, _child_main, _start, wait_for

SETTINGS_OF = {"wandb": "wandb_project=p", "trackio": "trackio_project=p", "tensorboard": "tensorboard=true"}
TRACKERS = list(SETTINGS_OF)
TRACKED = tuple(SETTINGS_OF[name] for name in TRACKERS)
"""Settings that ask for all of them."""


def run_tracked(child: Child, **environ: str) -> int:
    """Runs to the end, W&B offline and Trackio's database in the child's folder unless ``environ`` says otherwise."""
    folder = str(child.folder)
    defaults = {"WANDB_MODE": "offline", "WANDB_CONFIG_DIR": folder, "TRACKIO_DIR": f"{folder}/trackio"}
    return wait_for(_start(_tracked_main, child, defaults | environ))


def _tracked_main(child: Child, environ: dict[str, str]) -> None:
    os.environ.update(environ)
    # Trackio reads its folder when it is imported, which the fork server has done.
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        del sys.modules[name]
    _child_main(child)


class KillOnceTracked:
    """Kills the process at an occurrence of a point, but not before trackers have taken some rows."""

    def __init__(self, point: str, occurrence: int, rows: int, taken: Semaphore) -> None:
        """``rows`` counts those of all trackers together; ``taken`` is new."""
        self._point = point
        self._left = occurrence
        self._rows = rows
        self._taken = taken

    def __call__(self, point: str) -> None:
        """Trackers are heard on their own threads."""
        if point.startswith("tracker:after:"):
            self._taken.release()
        elif point == self._point:
            if self._left == 0:
                for _ in range(self._rows):
                    self._taken.acquire()
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


class KillUntracked:
    """Kills the process at an occurrence of a point, and lets no tracker take a row before that."""

    def __init__(self, point: str, occurrence: int) -> None:
        """``occurrence`` is 0-based."""
        self._point = point
        self._left = occurrence

    def __call__(self, point: str) -> None:
        """Trackers are held for ever."""
        if point.startswith("tracker:before:"):
            threading.Event().wait()
        elif point == self._point:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1
