"""SIGTERM and SIGINT stop a run within its grace, and the same command takes it up again."""

import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from observers import SignalAt
from processes import fixture_d, run_child

from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.testing import outcome_of_run

CALLS_IN_BATCH_0 = 8


def seconds_to_stop(folder: Path) -> float:
    """From the signal to the last record."""
    stopped = datetime.fromisoformat(read_journal(folder / "run").records[-1].at)
    return stopped.timestamp() - float((folder / "signalled").read_text())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_rollout_stops_the_run_resumably(
    number: signal.Signals, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """What is under way is finished and stored, nothing more is begun, and in the end nothing is different."""
    observer = SignalAt("request:after:sample", CALLS_IN_BATCH_0, number, tmp_path / "signalled")
    assert run_child(fixture_d(tmp_path, "concurrency=1", observer=observer)) == 128 + number
    reading = read_journal(tmp_path / "run")
    stop = reading.records[-1].fields
    assert (stop["reason"], stop["batch"], stop["state"]) == ("interrupted", 1, State.ROLLOUT)
    assert len((tmp_path / "run" / "rollouts" / "000001.train.jsonl").read_text().splitlines()) == 1
    assert f"stopped by {number.name}" in fixture_d(tmp_path).output
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted


def test_agents_that_never_end_are_abandoned_after_the_grace(tmp_path: Path) -> None:
    settings = ("agent=troubled:hanging", "grace_seconds=1")
    observer = SignalAt("request:after:sample", 0, signal.SIGTERM, tmp_path / "signalled")
    assert run_child(fixture_d(tmp_path, *settings, observer=observer)) == 143
    assert read_journal(tmp_path / "run").records[-1].fields["reason"] == "interrupted"
    assert 1.0 <= seconds_to_stop(tmp_path) < 5.0


def test_a_second_sigint_ends_the_process_at_once(tmp_path: Path) -> None:
    settings = ("agent=troubled:hanging", "grace_seconds=1000")
    observer = SignalAt("request:after:sample", 0, signal.SIGINT, tmp_path / "signalled", until_dead=True)
    assert run_child(fixture_d(tmp_path, *settings, observer=observer), timeout_seconds=60) == 130
    run = read_journal(tmp_path / "run").run
    assert (run.running, run.state) == (True, State.ROLLOUT)
    assert RunLock.holder(tmp_path / "run") is None
