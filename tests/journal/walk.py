"""A run to test journals with: which record comes next, and a process that appends records until it is killed."""

import itertools
import sys
from pathlib import Path
from typing import Any

from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import RunState
from orchestrator.names import State, next_state

CONFIG = {"batch_size": 16, "group_size": 4, "eval_every": 2, "eval_group_size": 1}
DATASET = {"train": {"rows": 48, "sha256": "ab" * 32}, "val": {"rows": 5, "sha256": "cd" * 32}}
NUM_BATCHES = 3


def run_started(**changes: Any) -> dict[str, Any]:
    """The fields of the first record."""
    return {
        "run_id": "run-1",
        "config": CONFIG,
        "dataset": DATASET,
        "num_batches": NUM_BATCHES,
        "schedule_batches": NUM_BATCHES,
        "versions": {"torch": "2.13.0"},
    } | changes


def process_started(run: RunState, **changes: Any) -> dict[str, Any]:
    """The fields of a process that takes up ``run``."""
    resumed_from = {"batch": run.batch, "state": run.state.value} if run.processes else None
    return {
        "pid": 7,
        "host": "here",
        "resumed_from": resumed_from,
        "attempt": run.processes,
        "config": run.config,
        "drift": [],
        "num_batches": run.num_batches,
    } | changes


def state_entered(run: RunState, **changes: Any) -> dict[str, Any]:
    """The fields of entering the state in which ``run`` is."""
    return {"batch": run.batch, "state": run.state, "attempt": run.entries} | changes


def transition(run: RunState, **changes: Any) -> dict[str, Any]:
    """The fields of leaving the state in which ``run`` is."""
    return {
        "batch": run.batch,
        "source": run.state,
        "dest": next_state(run.state, batch=run.batch, num_batches=run.num_batches),
        "attempt": run.entries - 1,
        "seconds": 0.25,
        "result": result(run),
    } | changes


def process_stopped(run: RunState, reason: str, error: str | None = None) -> dict[str, Any]:
    """The fields of a process's last words."""
    return {"reason": reason, "batch": run.batch, "state": run.state, "error": error}


def checkpoint_saved(run: RunState, name: str, **changes: Any) -> dict[str, Any]:
    """The fields of a checkpoint of the weights that ``run`` has in its current batch."""
    return {
        "batch": run.batch,
        "name": name,
        "checkpoint_kind": "periodic",
        "state_path": f"local://weights/{name}",
        "sampler_path": None,
        "expires_at": None,
    } | changes


def result(run: RunState) -> dict[str, Any]:
    """What the current state could report."""
    match run.state:
        case State.PUBLISH_MODEL:
            return {"policy_version": run.batch, "sampler_path": f"local://sampler/{run.batch}"}
        case State.ROLLOUT:
            return {"outcomes": {"succeeded": 60, "failed": 4}, "sampled_tokens": 6400}
        case State.TRAIN_STEP:
            return {"skipped": False, "optim_steps": 1, "trained_tokens": 1000 + run.batch}
        case State.SWAP_SAMPLER:
            return {"policy_version": run.batch + 1, "sampler_path": f"local://sampler/{run.batch + 1}"}
        case _:
            return {"metrics": {"test/reward": 0.5}, "note": "naïve \u2028 line"}


def next_record(run: RunState) -> tuple[Kind, dict[str, Any]]:
    """The record that an undisturbed process appends next; after the end it stops and the next one starts."""
    if not run.run_id:
        return Kind.RUN_STARTED, run_started()
    if not run.running:
        return Kind.PROCESS_STARTED, process_started(run)
    if run.finished:
        return Kind.PROCESS_STOPPED, process_stopped(run, "finished")
    if run.state is State.FINISHED:
        return Kind.RUN_FINISHED, {"batches": run.num_batches}
    if not run.entered:
        return Kind.STATE_ENTERED, state_entered(run)
    return Kind.TRANSITION, transition(run)


def advance(journal: Journal, num_records: int) -> list[Record]:
    """Appends the next ``num_records`` records of an undisturbed run."""
    records = []
    for _ in range(num_records):
        kind, fields = next_record(journal.run)
        records.append(journal.append(kind, **fields))
    return records


def advance_to(journal: Journal, batch: int, state: State) -> RunState:
    """Appends until the run is in ``state`` of ``batch`` and has not entered it."""
    while (journal.run.batch, journal.run.state) != (batch, state) or not journal.run.running:
        advance(journal, 1)
    return journal.run


def take_up(log_path: Path) -> Journal:
    """The journal opened by a new process, which says so where the run exists."""
    journal = Journal(log_path)
    if journal.run.run_id:
        journal.append(Kind.PROCESS_STARTED, **process_started(journal.run))
    return journal


def main() -> None:
    """Appends records for ever to the run directory given, and tells each record once it is acknowledged."""
    log_path = Path(sys.argv[1])
    with RunLock.acquire(log_path), take_up(log_path) as journal:
        for _ in itertools.count():
            [record] = advance(journal, 1)
            sys.stdout.write(f"{record.seq} {record.at} {record.kind}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
