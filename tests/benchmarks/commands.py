"""The commands as typed: ``--help``, a default run's start, and its memory; each in a process of its own.

The first rollout is under way once the usage file has the first sample call; the built-in model is made already. Memory
is the most that was ever resident in the whole default run.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.rows import Row, alone

from orchestrator.backends.usage import USAGE_NAME

HELP_ROUNDS, START_ROUNDS = 7, 3
POLL_SECONDS = 0.01
LIMIT_SECONDS = 120.0
RUN = [sys.executable, "-m", "orchestrator", "run"]


def measure(folder: Path) -> list[Row]:
    """Three rows."""
    first_rollouts = [_first_rollout_seconds(folder / f"start-{number}") for number in range(START_ROUNDS)]
    note = "whole starts, after one that is not counted"
    return [
        alone("`--help`", "s", [_help_seconds() for _ in range(HELP_ROUNDS)], ours_at_most=0.5),
        alone("command to first rollout", "s", first_rollouts[1:], ours_at_most=12, note=note),
        alone(
            "memory, whole default run", "MB", [_peak_megabytes(folder / "whole")], ours_at_most=2048, note="one run"
        ),
    ]


def _help_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "orchestrator", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _first_rollout_seconds(log_path: Path) -> float:
    began = time.perf_counter()
    process = subprocess.Popen([*RUN, f"log_path={log_path}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    usage = log_path / USAGE_NAME
    try:
        while not (usage.exists() and b'"sample"' in usage.read_bytes()):
            if process.poll() is not None or time.perf_counter() > began + LIMIT_SECONDS:
                raise RuntimeError(f"the run in {log_path} came to no rollout")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _peak_megabytes(log_path: Path) -> float:
    process = subprocess.Popen([*RUN, f"log_path={log_path}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"the run in {log_path} failed")
    kilobytes = usage.ru_maxrss / 1024 if sys.platform == "darwin" else usage.ru_maxrss
    return kilobytes / 1024
