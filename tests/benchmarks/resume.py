"""A killed default run taken up again: from libraries imported to the first call that does new work.

Killed in a Rollout with a batch trained since the checkpoint; the first useful call is the first sample of a rollout
that was missing.
"""

import importlib
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.children import MeasurementError, forked
from benchmarks.rows import Row, alone

from orchestrator.chaos.children import RUN_MODULES, run_observed
from orchestrator.testing import KillAt

ROUNDS = 5
SETTINGS = ("rolling_save_every=2", "eval_every=0", "max_batches=6")
KILLED_AT_CALL = 140 * 3 + 60
"""A batch makes about 140 calls."""


def measure(folder: Path) -> list[Row]:
    """One row."""
    for module in RUN_MODULES:  # before the clock starts
        importlib.import_module(module)
    killed = folder / "killed"
    killed.mkdir()
    with suppress(MeasurementError):  # it dies, as it is meant to
        forked(folder / "killed.txt", _run_killed, killed)
    seconds = []
    for number in range(ROUNDS):
        copy = folder / str(number)
        shutil.copytree(killed, copy)
        seconds.append(forked(folder / f"{number}.txt", _seconds_to_sample, copy))
    return [alone("resume to first useful call", "s", seconds, ours_at_most=2)]


def _run_killed(folder: Path) -> None:
    run_observed(SETTINGS, folder, KillAt("request:before:sample", KILLED_AT_CALL), environ={})


def _seconds_to_sample(folder: Path) -> float:
    receiver, sender = os.pipe()
    began = time.perf_counter()

    def observe(point: str) -> None:
        if point == "request:before:sample":
            os.write(sender, repr(time.perf_counter() - began).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        run_observed(SETTINGS, folder, observe, environ={})
        os._exit(1)
    os.waitpid(child, 0)
    os.close(sender)
    with os.fdopen(receiver) as file:
        return float(file.read())
