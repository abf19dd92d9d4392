"""Agents that fail, hang, or give nothing to learn from: counted, told, and never taken for a reward of 0."""

import json
from pathlib import Path
from typing import Any

from observers import FailAt
from processes import FIXTURE_D, fixture_d, run_child, run_command

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.testing import outcome_of_run, read_ledger


def requests_in(folder: Path) -> set[str]:
    """What was asked of the backend."""
    return {line["request"] for line in read_ledger(folder / "ledger.jsonl")}


def test_batches_without_signal_pass_every_state_and_train_nothing(tmp_path: Path) -> None:
    """H10: rewards are equal within every group."""
    settings = ("agent=troubled:constant", "max_batches=2", "max_no_progress_batches=3")
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    assert not requests_in(tmp_path) & {"forward_backward", "optim_step"}
    transitions = [record.fields for record in read_journal(tmp_path / "run").records if record.kind == "transition"]
    passed = [(fields["batch"], fields["source"]) for fields in transitions]
    assert passed[: 2 * len(CYCLE)] == [(batch, state) for batch in range(2) for state in CYCLE]
    rows = outcome_of_run(tmp_path / "run")["metrics"][:2]
    assert [(row["train/skipped"], row["train/optim_steps"], row["rollout/groups_constant"]) for row in rows] == [
        (1, 0, 2),
        (1, 0, 2),
    ]
    assert all("2 with equal rewards" in row["train/skip_reason"] for row in rows)
    samplers = {fields["result"]["sampler_path"] for fields in transitions if fields["source"] == State.PUBLISH_MODEL}
    assert samplers == {"local://run/sampler_weights/000000"}


def test_a_run_whose_rollouts_all_fail_stops_with_the_counts_and_the_error_and_goes_on_when_told_to(
    tmp_path: Path,
) -> None:
    """H30."""
    settings = ("agent=troubled:failing", "max_no_progress_batches=2")
    child = fixture_d(tmp_path, *settings)
    assert run_child(child) == 1
    run = read_journal(child.log_path).run
    assert (run.batch, run.state) == (2, State.PUBLISH_MODEL)
    assert run.last_stop is not None
    told = child.output[child.output.index("orchestrator: ") :]
    for part in (
        "2 batches in a row",
        "2 failed",
        "000001-train-0000-000: failed (RuntimeError at troubled.py:",
        "the same command",
    ):
        assert part in told
    written = child.output + "".join((child.log_path / name).read_text() for name in ("log.jsonl", "journal.jsonl"))
    assert "CANARY-77" not in written

    assert run_child(child) == 1
    assert [row["rollout/failed"] for row in outcome_of_run(child.log_path)["metrics"]] == [4, 4, 4]
    told = child.output[child.output.rindex("orchestrator: ") :]
    assert "not one rollout of all 3 batches succeeded" in told
    assert "another log_path" in told


def test_a_rollout_that_sleeps_for_ever_is_timed_out_and_holds_up_nothing(tmp_path: Path) -> None:
    """H12: not the state, not the batch's training, and not the end of the process."""
    settings = ("agent=troubled:one_sleeps", "rollout_timeout_seconds=2", "max_batches=1")
    assert run_child(fixture_d(tmp_path, *settings), timeout_seconds=30) == 0
    run = read_journal(tmp_path / "run").run
    assert 2.0 <= run.batches[0].seconds[State.ROLLOUT] < 5.0
    row = outcome_of_run(tmp_path / "run")["metrics"][0]
    assert (row["rollout/timed_out"], row["rollout/succeeded"], row["train/optim_steps"]) == (1, 3, 1)


def test_a_retried_rollout_is_stored_with_both_attempts_and_trained_on(tmp_path: Path) -> None:
    settings = ("agent=troubled:one_fails_first", "max_retries=1", "max_batches=1")
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    lines = (tmp_path / "run" / "rollouts" / "000000.train.jsonl").read_text().splitlines()
    chosen = [StoredRollout.from_json(line) for line in lines if StoredRollout.from_json(line).key.member == 1][:2]
    assert [(rollout.attempt, rollout.last, str(rollout.outcome)) for rollout in chosen] == [
        (0, False, "failed"),
        (1, True, "succeeded"),
    ]
    row = outcome_of_run(tmp_path / "run")["metrics"][0]
    assert (row["rollout/retried"], row["rollout/succeeded"], row["rollout/failed"]) == (1, 4, 0)
    assert row["rollout/datums"] == 4


def test_a_state_that_fails_three_times_is_not_entered_a_fourth(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    failing = FailAt("request:before:forward_backward")
    for _ in range(3):
        assert run_child(fixture_d(tmp_path, observer=failing)) == 1
    requests = read_ledger(tmp_path / "ledger.jsonl")
    mended = fixture_d(tmp_path)
    assert run_child(mended) == 3
    assert "TrainStep of batch 0 failed 3 times" in mended.output
    assert "RuntimeError at observers.py:" in mended.output
    assert read_ledger(tmp_path / "ledger.jsonl") == requests
    assert run_child(fixture_d(tmp_path, "max_attempts=4")) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
    assert json.loads((tmp_path / "run" / "config.json").read_text())["max_attempts"] == 4


def test_an_agent_that_changes_the_working_directory_changes_nothing_else(tmp_path: Path) -> None:
    assert run_child(fixture_d(tmp_path, "agent=troubled:wandering", "max_batches=2")) == 0
    assert read_journal(tmp_path / "run").run.finished


def test_a_group_with_a_failed_member_is_dropped_when_told_to(tmp_path: Path) -> None:
    settings = ("agent=troubled:one_fails_first", "on_failure=drop_group", "max_batches=1")
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    row = outcome_of_run(tmp_path / "run")["metrics"][0]
    assert (row["rollout/failed"], row["rollout/groups_failed"], row["rollout/datums"]) == (1, 1, 2)


def test_the_first_failure_stops_the_run_when_told_to_and_the_same_command_tries_it_again(tmp_path: Path) -> None:
    settings = ("agent=troubled:one_fails_first", "on_failure=stop", "max_batches=1")
    child = fixture_d(tmp_path, *settings)
    assert run_child(child) == 1
    assert "rollout 000000-train-0000-001, attempt 0: failed (ConnectionError at troubled.py:" in child.output
    assert run_child(child) == 0
    row = outcome_of_run(tmp_path / "run")["metrics"][0]
    assert (row["rollout/retried"], row["rollout/succeeded"]) == (1, 4)


def test_a_stored_failure_has_its_traceback_whole_and_nothing_else_quotes_it(tmp_path: Path) -> None:
    child = fixture_d(tmp_path, "agent=troubled:quoting", "max_batches=1")
    assert run_child(child) == 0
    stored = child.log_path / "rollouts" / "000000.train.jsonl"
    (failed,) = [r for r in map(StoredRollout.from_json, stored.read_text().splitlines()) if r.outcome == "failed"]
    assert failed.traceback is not None
    for part in ("ExceptionGroup: CANARY-77", "  | ValueError: CANARY-77", "direct cause of", "in quoting\n"):
        assert part in failed.traceback
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path != stored]
    assert [path for path in others if b"CANARY-77" in path.read_bytes()] == []
    assert "failed (ConnectionError at troubled.py:" in child.output


def test_threads_that_agents_leave_behind_do_not_keep_the_process_alive(tmp_path: Path) -> None:
    """H12: as a user starts it, for there the interpreter would wait for them."""
    settings = [setting for setting in FIXTURE_D if not setting.startswith("agent=")]
    command = ("run", *settings, "agent=troubled:leaving_threads", "max_batches=1", "log_path=run")
    code, _, told = run_command(tmp_path, *command)
    assert code == 0, told
    assert read_journal(tmp_path / "run").run.finished
