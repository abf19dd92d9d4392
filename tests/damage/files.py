"""Faults of whole files, their bytes and their lines, whatever they mean."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from damage import BASE, CHECKPOINTS, CONFIG, JOURNAL, METRICS, SAMPLERS, STATES, Fault, delete, rewriting

NUM_FLIPS = 8
"""Bit flips of each file."""


def file_faults(log_path: Path, name: str, other: Path, *, unfinished: bool = False) -> Iterator[Fault]:
    """What can happen to any file; an ``unfinished`` file may be missing, or torn at its end."""
    data = (log_path / name).read_bytes()
    random = Random(name)
    end = len(data) - (1 if unfinished or name == JOURNAL else 0)  # without its newline the last line counts as torn
    for _ in range(NUM_FLIPS):
        position, bit = random.randrange(end), random.randrange(8)
        flipped = bytearray(data)
        flipped[position] ^= 1 << bit
        yield rewriting(f"bit {bit} of byte {position}", name, bytes(flipped))
    if unfinished:
        return
    for part in (0.3, 0.7):
        if name != JOURNAL:
            yield rewriting(f"cut after {part:.0%}", name, data[: int(len(data) * part)])
    yield rewriting("emptied", name, b"")
    yield delete(name)
    foreign = (other / name).read_bytes()
    if foreign != data and name != JOURNAL:  # another run's whole journal accuses what it does not know
        yield rewriting("of another run", name, foreign)


def line_faults(log_path: Path, name: str, other: Path, *, ordered: bool = True) -> Iterator[Fault]:
    """What can happen to the lines of a file; without ``ordered`` their order and number decide nothing."""
    lines = (log_path / name).read_bytes().splitlines(keepends=True)
    foreign = (other / name).read_bytes().splitlines(keepends=True)
    last = len(lines) - 1
    for number in sorted({0, last // 2, last}):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        yield rewriting(f"line {number} doubled", name, b"".join([*before, line, line, *after]))
        yield rewriting(f"line {number} is no JSON", name, b"".join([*before, b"{bad\n", *after]))
        yield rewriting(f"a blank line before {number}", name, b"".join([*before, b"\n", line, *after]))
        if ordered and foreign[number] != line and (name != JOURNAL or number == 0):  # most records differ in the clock
            yield rewriting(f"line {number} of another run", name, b"".join([*before, foreign[number], *after]))
        if ordered and (name != JOURNAL or number < last):  # else it is a shorter journal, and legal
            yield rewriting(f"line {number} deleted", name, b"".join([*before, *after]))
    for number in sorted({0, last // 2} - {last}) if ordered else ():
        swapped = [*lines]
        swapped[number : number + 2] = reversed(lines[number : number + 2])
        yield rewriting(f"lines {number} and {number + 1} swapped", name, b"".join(swapped))


def stray_faults(log_path: Path) -> Iterator[Fault]:
    """Files that no batch of the run has written."""
    own = {
        "rollouts/000009.train.jsonl": "rollouts/000000.train.jsonl",
        "rollouts/000001.eval.jsonl": "rollouts/000000.train.jsonl",
        "rollouts/000000.train.jsonl~": "rollouts/000000.train.jsonl",
        "rollouts/0.train.jsonl": "rollouts/000000.train.jsonl",
        "turns/000009.train.jsonl": "rollouts/000000.train.jsonl",
        "turns/best": "rollouts/000000.train.jsonl",
        "datums/000007.jsonl.zst": "datums/000000.jsonl.zst",
        "datums/000000.jsonl": "datums/000000.jsonl.zst",
        f"{STATES}/000042": f"{BASE}/config.json",
        f"{SAMPLERS}/best": f"{BASE}/config.json",
    }
    for name, like in own.items():
        content = (log_path / like).read_bytes()
        yield rewriting("is a stray", name, content)


def view_faults(log_path: Path, other: Path) -> Iterator[Fault]:
    """What can happen to the views."""
    for name in (METRICS, CHECKPOINTS):
        yield from line_faults(log_path, name, other)
    for name in (METRICS, CHECKPOINTS, CONFIG):
        yield from file_faults(log_path, name, other)
    lines = (log_path / METRICS).read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines):
        row = json.loads(line)
        for key in ("step", "progress/done_frac", "time/Rollout_seconds"):
            if key in row:
                changed = json.dumps({**row, key: row[key] + 1}).encode() + b"\n"
                content = b"".join([*lines[:number], changed, *lines[number + 1 :]])
                yield rewriting(f"{key} of row {number} changed", METRICS, content)
    config = json.loads((log_path / CONFIG).read_bytes())
    for key, value in {"batch_size": 3, "log_level": "debug", "model_name": "tinier"}.items():
        content = json.dumps({**config, key: value}, indent=2).encode()
        yield rewriting(f"{key} changed", CONFIG, content)
