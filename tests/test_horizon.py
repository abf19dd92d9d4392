"""How far a run goes: through every epoch, further when the horizon grows, and no further when it is done."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from processes import BATCHES, fixture_d, run_child

from orchestrator.backends.local.tiny import make_tokenizer
from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State, batch_name
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

DRIFT = "allow_drift=final_learning_rate"
TRAINING = (State.ROLLOUT, State.TRAIN_STEP)


def tasks_of_batch(log_path: Path, batch: int) -> list[str]:
    """Which task each group of a batch was given, from the prompts that were sampled."""
    tokenizer = make_tokenizer()
    lines = (log_path / "rollouts" / f"{batch_name(batch)}.train.jsonl").read_text().splitlines()
    rollouts = [StoredRollout.from_json(line) for line in lines]
    prompts = [tokenizer.decode(rollout.turns[0].prompt_tokens) for rollout in rollouts if rollout.key.member == 0]
    return [next(task for batch in BATCHES for task in batch if task in prompt) for prompt in prompts]


def test_a_crash_at_the_end_of_an_epoch_does_not_end_the_run(tmp_path: Path) -> None:
    """H21: killed right after the last batch of the first of two epochs."""
    end_of_epoch = 3 * len(CYCLE) - 1
    assert run_child(fixture_d(tmp_path, "n_epochs=2", observer=KillAt("append:after:transition", end_of_epoch))) == -9
    assert read_journal(tmp_path / "run").run.batch == 3
    assert run_child(fixture_d(tmp_path, "n_epochs=2")) == 0
    run = read_journal(tmp_path / "run").run
    assert (run.batch, run.finished) == (6, True)
    shuffler = Random(42)
    for _ in range(2):  # an epoch each, by one generator
        order = list(range(6))
        shuffler.shuffle(order)
    second = [[f"t{index}" for index in order[start : start + 2]] for start in (0, 2, 4)]
    assert [tasks_of_batch(tmp_path / "run", batch) for batch in range(6)] == BATCHES + second
    assert [row["step"] for row in outcome_of_run(tmp_path / "run")["metrics"]] == list(range(6))


def test_a_longer_horizon_goes_on_where_the_run_ended_and_a_finished_run_stays_as_it_is(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    log_path = tmp_path / "run"
    short, long = (fixture_d(tmp_path, "val_dataset=troubled:VAL_TASKS", f"max_batches={n}") for n in (2, 3))
    assert run_child(short) == 0
    ended = outcome_of_run(log_path)
    assert [row["step"] for row in ended["metrics"]] == [0, 1, 2]
    assert "test/reward_mean" in ended["metrics"][2]

    assert run_child(long) == 0
    outcome = outcome_of_run(log_path)
    assert [row["step"] for row in outcome["metrics"]] == [0, 1, 2, 3]
    assert [row["step"] for row in outcome["metrics"] if "test/reward_mean" in row] == [0, 2, 3]
    done = [row["progress/done_frac"] for row in outcome["metrics"]]
    assert done == [0.5, 1.0, 1.0, 1.0], (
        "a part of what the run was started for; rows that are written stay as they are"
    )
    assert {path: outcome["files"].get(path) for path in ended["files"] if path.startswith(("rollouts", "datums"))} == {
        path: sha256 for path, sha256 in ended["files"].items() if path.startswith(("rollouts", "datums"))
    }
    for batch in range(3):
        for state in TRAINING:
            assert outcome["results"][batch][state] == uninterrupted["results"][batch][state]

    journal = (log_path / "journal.jsonl").read_bytes()
    assert run_child(long) == 0
    assert (log_path / "journal.jsonl").read_bytes() == journal
    assert outcome_of_run(log_path) == outcome
    assert "nothing to do" in long.output


def test_a_shorter_horizon_is_refused(killed: Path) -> None:
    child = fixture_d(killed, "max_batches=1")
    assert run_child(child) == 3
    assert "max_batches was None and is 1" in child.output


def test_an_extended_run_keeps_the_learning_rates_that_its_schedule_promised(tmp_path: Path) -> None:
    """H29: from 0.001 to 0.0005 over the three batches it was started for, then extended to six."""
    rates = ("agent=troubled:untroubled", "n_epochs=2", "learning_rate=0.001", "final_learning_rate=0.0005")
    promised = [0.001, 0.00075, 0.0005]
    assert run_child(fixture_d(tmp_path, *rates, "max_batches=3")) == 0
    rescaled = fixture_d(tmp_path, *rates, "max_batches=6", "final_learning_rate=0.0001")
    requests = read_ledger(rescaled.ledger)
    assert run_child(rescaled) == 3
    assert "final_learning_rate was 0.0005 and is 0.0001" in rescaled.output
    assert read_ledger(rescaled.ledger) == requests

    assert run_child(fixture_d(tmp_path, *rates, "max_batches=5")) == 0
    explicit = fixture_d(tmp_path, *rates, "max_batches=6", "final_learning_rate=0.0001", DRIFT)
    assert run_child(explicit) == 0
    run = read_journal(tmp_path / "run").run
    trained = [run.batches[batch].results[State.TRAIN_STEP]["learning_rate"] for batch in range(6)]
    assert trained == pytest.approx([*promised, 0.0005, 0.0005, 0.0001])
    assert [row["optim/lr"] for row in outcome_of_run(tmp_path / "run")["metrics"][:6]] == trained
    accepted = [record.fields["drift"] for record in read_journal(tmp_path / "run").records if "drift" in record.fields]
    assert accepted == [[], [], [{"field": "final_learning_rate", "old": 0.0005, "new": 0.0001}]]
