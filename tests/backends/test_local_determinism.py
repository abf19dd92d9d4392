import os
import signal
import subprocess
import sys
from pathlib import Path

from backends import local_program

PROGRAM = Path(__file__).with_name("local_program.py")


def start(storage: Path, cache: Path, num_threads: int, begin: int, end: int) -> "subprocess.Popen[str]":
    arguments = [str(storage), str(cache), str(num_threads), str(begin), str(end)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )


def lines_of(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    lines = [line for line in process.stdout.read().splitlines() if line.startswith("{")]
    assert process.wait() == 0
    return lines


async def test_several_threads_sample_and_train_the_same_bits_every_time(tmp_path: Path) -> None:
    once, again = [
        [line async for line in local_program.train(tmp_path / name, tmp_path / "cache", 2, 0, 3)]
        for name in ("once", "again")
    ]
    assert once == again


def test_a_killed_and_resumed_process_samples_and_trains_the_same_bits(tmp_path: Path) -> None:
    uninterrupted = start(tmp_path / "whole", tmp_path / "cache", 1, 0, 4)
    expected = lines_of(uninterrupted)
    assert len({line.partition('"weights"')[2] for line in expected}) == 4

    killed = start(tmp_path / "killed", tmp_path / "other-cache", 1, 0, 10**6)
    assert killed.stdout is not None
    found: list[str] = []
    while len(found) < 2:
        line = killed.stdout.readline().rstrip("\n")
        found += [line] if line.startswith("{") else []
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    resumed = start(tmp_path / "killed", tmp_path / "other-cache", 1, 2, 4)
    assert found + lines_of(resumed) == expected
