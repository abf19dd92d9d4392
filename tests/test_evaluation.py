"""Evaluations: when they are due, each once, and a metric row for the last."""

from collections import Counter
from pathlib import Path

import pytest
from observers import QuoteAt
from processes import fixture_d, run_child, run_command

from orchestrator.journal.log import read_journal
from orchestrator.journal.plan import make_plan
from orchestrator.names import State
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

SETTINGS = (
    "agent=troubled:untroubled",
    "val_dataset=troubled:VAL_TASKS",
    "n_epochs=2",
    "max_batches=4",
    "eval_every=2",
    "concurrency=1",
)
CALLS_BEFORE = 2 + 2 * 4
"""Of the first evaluation and of two batches of four single-turn rollouts."""


def test_every_due_evaluation_happens_once_whatever_is_killed(tmp_path: Path) -> None:
    """H27: before batches 0 and 2, and of the final weights; killed in the second one, between its two rollouts."""
    killed = fixture_d(tmp_path, *SETTINGS, observer=KillAt("request:before:sample", CALLS_BEFORE + 1))
    assert run_child(killed) == -9
    dead = read_journal(killed.log_path).run
    assert (dead.batch, dead.state) == (2, State.MAYBE_EVALUATE)
    assert run_child(fixture_d(tmp_path, *SETTINGS)) == 0

    transitions = [record.fields for record in read_journal(killed.log_path).records if record.kind == "transition"]
    evaluations = [fields for fields in transitions if fields["source"] == State.MAYBE_EVALUATE]
    assert [fields["batch"] for fields in evaluations] == [0, 1, 2, 3, 4]
    assert [fields["batch"] for fields in evaluations if fields["result"]["evaluated"]] == [0, 2, 4]
    rows = outcome_of_run(killed.log_path)["metrics"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "test/reward_mean" in row] == [0, 2, 4]
    calls = Counter(
        (tuple(line["prompt"][0]), line["seed"][0])
        for line in read_ledger(killed.ledger)
        if line["request"] == "sample"
    )
    assert set(calls.values()) == {1}


@pytest.mark.parametrize("point", ["append:before:run_finished", "append:after:run_finished"])
def test_the_row_of_the_final_evaluation_is_written_once_whatever_is_killed(tmp_path: Path, point: str) -> None:
    settings = ("agent=troubled:untroubled", "val_dataset=troubled:VAL_TASKS", "max_batches=1")
    assert run_child(fixture_d(tmp_path, *settings, observer=KillAt(point))) == -9
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    assert [row["step"] for row in outcome_of_run(tmp_path / "run")["metrics"]] == [0, 1]


def test_an_evaluation_that_fails_is_taken_up_under_its_own_sampling_parameters(tmp_path: Path) -> None:
    """H17: its second rollout fails, which ends the state; resumed, it samples at 0.0 and training at 1.0."""
    sampled = ("eval_temperature=0.0", "temperature=1.0")
    settings = ("agent=canary:discreet", SETTINGS[1], "max_batches=1", "concurrency=1", "on_failure=stop", *sampled)
    failing = fixture_d(tmp_path, *settings, observer=QuoteAt("request:before:sample", 1, "no sample"))
    assert run_child(failing) == 1
    assert "batch 0" in failing.output
    assert read_journal(failing.log_path).run.state is State.MAYBE_EVALUATE
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    asked = [line["temperature"][0] for line in read_ledger(failing.ledger) if line["request"] == "sample"]
    assert asked == [0.0] * 2 + [1.0] * 4 + [0.0] * 2


SETS = (
    "agent=troubled:one_eval_fails",
    "val_dataset=troubled:VAL_TASKS",
    "evals=hard=troubled:HARD_TASKS,lines=lines.jsonl",
    "eval_group_size=3",
    "pass_threshold=-0.3",
    "max_batches=1",
    "eval_every=1",
    "concurrency=2",
)


def test_several_evaluation_sets_are_played_at_once_measured_apart_and_resumed(tmp_path: Path) -> None:
    """Killed in the midst of the first evaluation, the run comes out as if it had not been, and verifies."""
    runs = {name: tmp_path / name for name in ("undisturbed", "killed")}
    for folder in runs.values():
        folder.mkdir()
        (folder / "lines.jsonl").write_text('"l0"\n')
    assert run_child(fixture_d(runs["undisturbed"], *SETS)) == 0
    killing = fixture_d(runs["killed"], *SETS, observer=KillAt("request:before:sample", 8))
    assert run_child(killing) == -9
    plan = make_plan(read_journal(killing.log_path).run, killing.log_path)
    assert (plan.mode, plan.total_rollouts) == ("eval", 3 * (2 + 3 + 1))
    assert 0 < plan.kept_rollouts < plan.total_rollouts
    assert run_child(fixture_d(runs["killed"], *SETS)) == 0
    expected = outcome_of_run(runs["undisturbed"] / "run")
    assert outcome_of_run(killing.log_path) == expected

    code, told, _ = run_command(runs["killed"] / "verify", "verify", str(killing.log_path))
    assert (code, "PASS" in told) == (0, True), told
    for row in expected["metrics"]:
        assert {area: row[f"{area}/tasks"] for area in ("test", "test/hard", "test/lines")} == {
            "test": 2,
            "test/hard": 3,
            "test/lines": 1,
        }
        assert (row["test/hard/failed"], row["test/hard/succeeded"], row["test/failed"]) == (3, 6, 0)
        assert row["test/hard/tasks_incomplete"] == 1
        assert row["test/pass_at_1"] <= row["test/pass_at_2"] <= row["test/pass_at_3"] <= 1
        assert row["test/hard/reward_stderr"] >= 0
        assert "test/lines/reward_stderr" not in row, "one task tells nothing of others"


def test_changed_evaluation_sets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "lines.jsonl").write_text('"l0"\n')
    assert run_child(fixture_d(tmp_path, *SETS, observer=KillAt("request:before:sample", 8))) == -9
    (tmp_path / "lines.jsonl").write_text('"l1"\n')
    assert run_child(fixture_d(tmp_path, *SETS)) == 3
    changed = fixture_d(tmp_path, *SETS, "evals=hard=troubled:HARD_TASKS")
    assert "test/lines: 1 rows sha256" in changed.output
    assert run_child(changed) == 3
    assert "evals was ['hard=troubled:HARD_TASKS', 'lines=lines.jsonl'] and is" in changed.output
