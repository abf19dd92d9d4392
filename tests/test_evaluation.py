"""Evaluations: when they are due, each once, and a metric row for the last."""

from collections import Counter
from pathlib import Path

import pytest
from observers import QuoteAt
from processes import fixture_d, run_child

from orchestrator.journal.log import read_journal
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
