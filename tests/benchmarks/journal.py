"""The journal: an append against a bare write and fsync of the same line, and the reading of 100,000 records.

The append encodes, checks, writes, syncs and folds a record; both go to the same disk, turn by turn. ``status`` is the
whole command in a process of its own.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.children import forked
from benchmarks.rows import Row, alone, compared

from orchestrator.journal.log import JOURNAL_NAME, Journal, read_journal
from orchestrator.journal.records import Kind, Record, encode
from orchestrator.journal.recovery import RunState
from orchestrator.names import State, next_state

ROUNDS, APPENDS, RECORDS = 5, 600, 100_000
AT = "2026-11-30T11:02:03.123456Z"
BATCHES = RECORDS
"""More than are reached."""


def measure(folder: Path) -> list[Row]:
    """Three rows."""
    ours, theirs = forked(folder / "output.txt", _appends, folder)
    folding, commands = forked(folder / "output.txt", _readings, folder / "long")
    return [
        compared("journal append", "ms", ours, theirs, "ours/theirs", ratio_at_most=1.2),
        alone(f"fold of {RECORDS:,} records", "s", folding, ours_at_most=2),
        alone("`status` on them", "s", commands, ours_at_most=1.5),
    ]


def events(num_records: int) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """The records of a run that goes on and on, as large as real ones."""
    run = RunState()
    metrics = {f"rollout/figure_{number}": number / 7 for number in range(20)}
    started = {"run_id": "r", "config": {}, "dataset": {}, "num_batches": BATCHES, "schedule_batches": BATCHES}
    yield Kind.RUN_STARTED, {**started, "versions": {}}
    process = {"pid": 1, "host": "here", "resumed_from": None, "attempt": 0, "config": {}, "drift": []}
    yield Kind.PROCESS_STARTED, {**process, "num_batches": BATCHES}
    batch, state = 0, run.state
    for _ in range((num_records - 2) // 2):
        yield Kind.STATE_ENTERED, {"batch": batch, "state": state, "attempt": 0}
        dest = next_state(state, batch=batch, num_batches=BATCHES)
        result = _result(state, batch, metrics)
        place = {"batch": batch, "source": state, "dest": dest, "attempt": 0, "seconds": 0.123456}
        yield Kind.TRANSITION, {**place, "result": result}
        batch, state = batch + (state is State.LOG), dest


def _result(state: State, batch: int, metrics: dict[str, float]) -> dict[str, Any]:
    sampler = {"sampler_path": f"local://run/sampler_weights/{batch:06d}"}
    outcomes = {"succeeded": 56, "failed": 0, "timed_out": 0, "empty": 0, "invalid": 0}
    played = {"outcomes": outcomes, "sampled_tokens": 280, "prompt_tokens": 9_000, "first_error": None}
    stored = {"file": f"rollouts/{batch:06d}.train.jsonl", "sha256": "0" * 64, "metrics": metrics}
    match state:
        case State.PUBLISH_MODEL:
            return {"policy_version": batch, **sampler, "model": "tiny", "resources_id": "r", "metrics": {}}
        case State.MAYBE_EVALUATE:
            return {"evaluated": False, "reason": "eval_every=0", "outcomes": {}, "metrics": {}}
        case State.ROLLOUT:
            return {**played, **stored, "replay_mismatches": 0}
        case State.TRAIN_STEP:
            return {
                "skipped": False,
                "reason": None,
                "optim_steps": 16,
                "datums": 56,
                "trained_tokens": 9_000,
                **stored,
            }
        case State.SWAP_SAMPLER:
            return {"policy_version": batch + 1, **sampler, "checkpoint": None, "metrics": {}}
        case _:
            return {"step": batch, "metrics": {}}


def _appends(folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds of both, the medians of each round."""
    ours, theirs = [], []
    waiting = events(ROUNDS * APPENDS + 2)
    bare = os.open(folder / "bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with Journal(folder) as journal:
        for _ in range(ROUNDS):
            appends, writes = [], []
            for _ in range(APPENDS):
                kind, fields = next(waiting)
                began = time.perf_counter()
                record = journal.append(kind, **fields)
                appended = time.perf_counter()
                line = encode(record)
                writing = time.perf_counter()
                os.write(bare, line)
                os.fsync(bare)
                writes.append(time.perf_counter() - writing)
                appends.append(appended - began)
            ours.append(median(appends) * 1000)
            theirs.append(median(writes) * 1000)
    os.close(bare)
    return ours, theirs


def _readings(log_path: Path) -> tuple[list[float], list[float]]:
    """Seconds that the fold takes, and the command."""
    log_path.mkdir()
    records = (Record(seq, AT, kind, fields) for seq, (kind, fields) in enumerate(events(RECORDS)))
    (log_path / JOURNAL_NAME).write_bytes(b"".join(map(encode, records)))
    folding, commands = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        read_journal(log_path)
        folding.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "orchestrator", "status", log_path], check=True)
        commands.append(time.perf_counter() - began)
    return folding, commands
