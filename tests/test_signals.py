"""SIGTERM and SIGINT stop a run wherever it is, and the same command takes it up again."""

import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from observers import SignalAt
from processes import fixture_d, run_child, run_command

from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import read_journal
from orchestrator.journal.recovery import RunState
from orchestrator.names import CYCLE, State
from orchestrator.testing import outcome_of_run, read_ledger

CALLS_IN_BATCH_0 = 8
EVALUATED = ("val_dataset=troubled:VAL_TASKS", "eval_every=1", "max_batches=2", "concurrency=1")


def seconds_to_stop(folder: Path) -> float:
    """From the signal to the last record."""
    stopped = datetime.fromisoformat(read_journal(folder / "run").records[-1].at)
    return stopped.timestamp() - float((folder / "signalled").read_text())


def interrupt(folder: Path, number: signal.Signals, point: str, occurrence: int, *settings: str) -> RunState:
    """Runs on in ``folder`` until the signal stops it; where the run stands then, as its last record says."""
    observer = SignalAt(point, occurrence, number, folder / "signalled")
    child = fixture_d(folder, *settings, observer=observer)
    assert run_child(child) == 128 + number, point
    assert f"stopped by {number.name}" in child.output
    reading = read_journal(child.log_path)
    stop = reading.records[-1]
    assert (stop.kind, stop.fields["reason"]) == ("process_stopped", "interrupted"), point
    assert RunLock.holder(child.log_path) is None
    return reading.run


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What fixture D with an evaluation before every batch comes to when nothing disturbs it."""
    child = fixture_d(tmp_path_factory.mktemp("evaluated"), *EVALUATED)
    assert run_child(child) == 0
    return outcome_of_run(child.log_path)


@pytest.mark.parametrize(("number", "grace_seconds"), [(signal.SIGTERM, 10), (signal.SIGINT, 0)])
def test_a_run_that_is_stopped_in_every_state_comes_to_the_same(
    number: signal.Signals, grace_seconds: int, tmp_path: Path, evaluated: dict[str, Any]
) -> None:
    """One run, a process for each state of batch 1: with a grace bodies end, without one they are abandoned."""
    settings = (*EVALUATED, f"grace_seconds={grace_seconds}")
    interrupt(tmp_path, number, "append:after:process_started", 0, *settings)  # while the gateway starts
    for position in range(len(CYCLE), 2 * len(CYCLE)):
        run = read_journal(tmp_path / "run").run
        entries_before = position - (run.batch * len(CYCLE) + CYCLE.index(run.state))
        run = interrupt(tmp_path, number, "append:after:state_entered", entries_before, *settings)
        stopped_at = run.batch * len(CYCLE) + CYCLE.index(run.state)
        takes_time = CYCLE[position % len(CYCLE)] in {State.ROLLOUT, State.TRAIN_STEP}
        assert stopped_at in ({position} if takes_time and not grace_seconds else {position, position + 1})
    assert run_child(fixture_d(tmp_path, *EVALUATED)) == 0
    assert outcome_of_run(tmp_path / "run") == evaluated


RESTORED = "request:after:create_training_client_from_state_with_optimizer"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_resume_that_is_stopped_is_resumed(
    number: signal.Signals, killed: Path, uninterrupted: dict[str, Any]
) -> None:
    """The run was killed in Rollout of batch 1; stopped while it starts, restores, and redoes batch 0's gradient."""
    starting = interrupt(killed, number, "request:before:get_weights_info_by_tinker_path", 0)
    assert (starting.batch, starting.state) == (1, State.ROLLOUT)
    for point in (RESTORED, "request:before:forward_backward"):
        restoring = interrupt(killed, number, point, 0, "grace_seconds=0")
        assert (restoring.batch, restoring.state) == (1, State.TRAIN_STEP)
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(killed / "run") == uninterrupted


def test_a_signal_in_an_evaluation_stops_it_after_what_is_under_way(tmp_path: Path, evaluated: dict[str, Any]) -> None:
    run = interrupt(tmp_path, signal.SIGTERM, "request:after:sample", 0, *EVALUATED)
    assert (run.batch, run.state) == (0, State.MAYBE_EVALUATE)
    assert len((tmp_path / "run" / "rollouts" / "000000.eval.jsonl").read_text().splitlines()) == 1
    assert run_child(fixture_d(tmp_path, *EVALUATED)) == 0
    assert outcome_of_run(tmp_path / "run") == evaluated
    calls = [line for line in read_ledger(tmp_path / "ledger.jsonl") if line["request"] == "sample"]
    assert len(calls) == len({(str(line["prompt"]), line["seed"][0]) for line in calls}), "a rollout was sampled twice"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_run_is_taken_up_leaves_no_run(number: signal.Signals, tmp_path: Path) -> None:
    observer = SignalAt("request:before:load_tokenizer", 0, number, tmp_path / "signalled")
    child = fixture_d(tmp_path, observer=observer)
    assert run_child(child) == 128 + number
    assert {path.name for path in child.log_path.iterdir()} <= {"log.jsonl"}
    assert run_child(fixture_d(tmp_path, "max_batches=1")) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_libraries_load_ends_the_command(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "signal.txt").write_text(number.name)
    settings = [setting for setting in fixture_d(tmp_path).settings if not setting.startswith("agent=")]
    code, _, stderr = run_command(tmp_path, "run", *settings, "agent=signalling:agent")
    assert code == 128 + number, stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "run").exists()


def test_a_signal_in_a_rollout_stops_the_run_resumably(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """What is under way is finished and stored, nothing more is begun, and in the end nothing is different."""
    run = interrupt(tmp_path, signal.SIGINT, "request:after:sample", CALLS_IN_BATCH_0, "concurrency=1")
    assert (run.batch, run.state) == (1, State.ROLLOUT)
    assert len((tmp_path / "run" / "rollouts" / "000001.train.jsonl").read_text().splitlines()) == 1
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
    child = fixture_d(tmp_path, *settings, observer=observer)
    assert run_child(child, timeout_seconds=60) == 130
    assert child.output.endswith("stopped at once; the same command resumes\n")
    run = read_journal(tmp_path / "run").run
    assert (run.running, run.state) == (True, State.ROLLOUT)
    assert RunLock.holder(tmp_path / "run") is None
