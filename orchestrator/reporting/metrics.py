"""The metric rows: a view of the journal, one row a batch and one for the final evaluation, never lost or doubled."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.disk import DISK, Disk
from orchestrator.journal.durable import LineFile, write_durably
from orchestrator.journal.recovery import RunState
from orchestrator.names import CYCLE, State

FILE_NAME = "metrics.jsonl"


def metric_row(run: RunState, batch: int) -> dict[str, Any]:
    """The row of ``batch`` in tinker-cookbook's form: ``step``, then ``area/name`` keys.

    It depends on nothing but what the batch's states before Log recorded, so every process gives the same row.
    """
    facts = run.batches[batch]
    row: dict[str, Any] = {
        "step": batch,
        "progress/batch": batch,
        "progress/done_frac": min((batch + 1) / run.schedule_batches, 1.0),  # of those it was started for
    }
    for state in CYCLE:
        if state is State.LOG or state not in facts.results:
            continue
        row |= facts.results[state].get("metrics", {})
        row[f"time/{state}_seconds"] = facts.seconds[state]
    step = facts.results.get(State.TRAIN_STEP)
    if step is not None:
        row["train/optim_steps"] = step["optim_steps"]
        row["train/datums"] = step["datums"]
        row["train/skipped"] = int(step["skipped"])
        if step["skipped"]:
            row["train/skip_reason"] = step["reason"]
    return row


def journaled_rows(run: RunState) -> list[dict[str, Any]]:
    """Every row that the journal says is complete: the logged batches and, once finished, the final evaluation."""
    return [metric_row(run, batch) for batch in range(run.first_batch, run.batch + has_final_row(run))]


def view_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """What ``metrics.jsonl`` holds for these rows."""
    return "".join(f"{_line(row)}\n" for row in rows).encode()


def has_final_row(run: RunState) -> bool:
    """Whether the final weights were evaluated, which has a row of its own, numbered ``num_batches``."""
    final = run.result(run.batch, State.MAYBE_EVALUATE)
    return run.state is State.FINISHED and final is not None and final["evaluated"]


class MetricRows:
    """``metrics.jsonl`` while a run goes on, and the way of its rows to the trackers."""

    def __init__(
        self,
        log_path: Path,
        run: RunState,
        *,
        disk: Disk = DISK,
        send: Callable[[Mapping[str, Any]], None] = lambda _row: None,
    ) -> None:
        """Makes the file equal the journal's rows: a torn, missing, doubled or foreign row is put right first.

        ``send`` is given each row that is added later.
        """
        path = log_path / FILE_NAME
        rows = journaled_rows(run)
        expected = view_of(rows)
        if not path.exists() or path.read_bytes() != expected:
            write_durably(path, expected, disk=disk)
        self._steps = {row["step"] for row in rows}
        self._file = LineFile(path, disk=disk)
        self._send = send

    def write(self, run: RunState, batch: int) -> dict[str, Any]:
        """Appends the row of ``batch`` durably, unless the file has it, and returns it.

        Raises:
            JournalWriteError: the row could not be written.
        """
        row = metric_row(run, batch)
        if batch not in self._steps:
            self._file.append(_line(row))
            self._steps.add(batch)
            self._send(row)
        return row

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, allow_nan=False)
