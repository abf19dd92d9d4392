"""What a process of the program does about itself: how it takes in libraries, and how it ends."""

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess


@contextmanager
def importing() -> Iterator[None]:
    """For the block that imports the libraries: nothing is garbage there, and what it leaves is never walked again.

    The libraries of a run leave a million objects that live as long as the process. Each full collection walks them
    all, which is a quarter of the imports' time, and later holds up every thread of the process for half a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def no_collection() -> Iterator[None]:
    """For a block that makes many objects which all live on: looking through them for garbage would find none."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def end_with_parent() -> None:
    """From now on this process dies when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_after, args=(parent,), daemon=True).start()


def _die_after(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGKILL)
