"""Laws of the recovery plan: it tells what is kept, restored, redone and paid, and it only reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from journal.walk import (
    NUM_BATCHES,
    advance_to,
    checkpoint_saved,
    process_started,
    process_stopped,
    state_entered,
    transition,
)

from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.durable import LineFile
from orchestrator.journal.log import Journal
from orchestrator.journal.plan import Plan, make_plan
from orchestrator.journal.records import Kind
from orchestrator.names import State
from orchestrator.rollouts.outcomes import Mode, Outcome, RolloutKey, StoredRollout, Turn


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def store(log_path: Path, batch: int, mode: Mode, members: list[tuple[int, int, bool]], *, tokens: int) -> None:
    """Stores one attempt for each (group, member, last), of two turns and ``tokens`` sampled tokens in all."""
    with LineFile(log_path / "rollouts" / f"{batch:06d}.{mode}.jsonl") as lines:
        for group, member, last in members:
            sizes = (tokens // 2, tokens - tokens // 2)
            turns = tuple(Turn((1, 2, 3), (5,) * size, (-0.5,) * size, batch, "stop") for size in sizes)
            key = RolloutKey(batch, mode, group, member)
            lines.append(StoredRollout(key, 0, last, Outcome.SUCCEEDED, 1.0, turns).to_json())


def plan_at(journal: Journal, batch: int, state: State) -> Plan:
    advance_to(journal, batch, state)
    return make_plan(journal.run, journal.path.parent)


def save(journal: Journal, name: str, batch: int, **changes: Any) -> None:
    journal.append(Kind.CHECKPOINT_SAVED, **checkpoint_saved(journal.run, name, batch=batch, **changes))


def test_a_run_that_was_killed_in_rollout_keeps_the_finished_rollouts(journal: Journal, tmp_path: Path) -> None:
    members = [(group, member, True) for group in range(16) for member in range(4)]
    store(tmp_path, 1, "train", [*members[:61], (15, 1, False)], tokens=100)
    plan = plan_at(journal, 1, State.ROLLOUT)
    assert (plan.mode, plan.kept_rollouts, plan.total_rollouts) == ("train", 61, 64)
    assert plan.sampled_tokens == 3 * 100, "64 rollouts of batch 0 took 6,400 tokens, the stored ones 100 each"
    assert "kept: 61 of 64 train rollouts" in plan.lines()
    assert "about 300 tokens sampled" in "\n".join(plan.lines())


def test_a_retried_rollout_is_kept_once_and_a_torn_one_not_at_all(journal: Journal, tmp_path: Path) -> None:
    store(tmp_path, 0, "train", [(0, 0, False), (0, 0, True), (0, 1, True), (0, 1, True)], tokens=10)
    path = tmp_path / "rollouts" / "000000.train.jsonl"
    torn = path.read_bytes() + b'{"batch":0,"mode":"tr'
    path.write_bytes(torn)
    assert plan_at(journal, 0, State.ROLLOUT).kept_rollouts == 2
    assert path.read_bytes() == torn


def test_without_earlier_rollouts_the_cost_is_unknown(journal: Journal) -> None:
    plan = plan_at(journal, 0, State.ROLLOUT)
    assert (plan.kept_rollouts, plan.total_rollouts, plan.sampled_tokens) == (0, 64, None)
    assert "an unknown number of tokens sampled" in "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("batch", "total"), [(0, 5), (1, 0), (2, 5), (NUM_BATCHES, 5)], ids=["first", "not due", "due", "final weights"]
)
def test_an_evaluation_keeps_its_rollouts_where_it_is_due(
    journal: Journal, tmp_path: Path, batch: int, total: int
) -> None:
    store(tmp_path, batch, "eval", [(0, 0, True), (3, 0, True)], tokens=20)
    plan = plan_at(journal, batch, State.MAYBE_EVALUATE)
    assert (plan.mode, plan.total_rollouts) == (("eval", total) if total else (None, 0))
    assert (plan.kept_rollouts, plan.sampled_tokens) == ((2, 60) if total else (0, 0))


def test_an_evaluation_is_estimated_from_earlier_ones(journal: Journal) -> None:
    run = advance_to(journal, 0, State.MAYBE_EVALUATE)
    journal.append(Kind.STATE_ENTERED, **state_entered(run))
    facts = {"evaluated": True, "outcomes": {"succeeded": 4, "failed": 1}, "sampled_tokens": 55}
    journal.append(Kind.TRANSITION, **transition(run, result=facts))
    assert plan_at(journal, 2, State.MAYBE_EVALUATE).sampled_tokens == 55


def test_the_newest_checkpoint_is_restored_and_the_batches_since_redone(journal: Journal) -> None:
    advance_to(journal, 0, State.LOG)
    save(journal, "000001", 1)
    save(journal, "000001-rolling", 1, checkpoint_kind="rolling", expires_at="2026-12-01T00:00:00Z")
    plan = plan_at(journal, 2, State.ROLLOUT)
    assert plan.checkpoint is not None
    assert (plan.checkpoint.name, plan.redone_batches, plan.trained_tokens) == ("000001-rolling", (1,), 1001)
    assert (
        "weights: checkpoint 000001-rolling (1 batch trained, expires 2026-12-01T00:00:00Z), "
        "then train steps of batch 1 redone from stored datums"
    ) in plan.lines()


def test_a_train_step_that_is_journaled_is_redone_and_one_that_is_not_is_just_done(journal: Journal) -> None:
    advance_to(journal, 1, State.ROLLOUT)
    save(journal, "000001", 1)
    assert plan_at(journal, 1, State.TRAIN_STEP).redone_batches == ()
    assert plan_at(journal, 1, State.SWAP_SAMPLER).redone_batches == (1,)
    save(journal, "000002", 2)
    assert plan_at(journal, 1, State.LOG).redone_batches == ()


def test_without_a_checkpoint_all_batches_are_redone_from_the_first_weights(journal: Journal) -> None:
    plan = plan_at(journal, 2, State.TRAIN_STEP)
    assert (plan.checkpoint, plan.redone_batches, plan.trained_tokens) == (None, (0, 1), 2001)
    assert "weights: those the run began with, then train steps of 2 batches, 0 to 1, redone" in "\n".join(plan.lines())


def test_a_batch_without_a_train_step_is_not_redone(journal: Journal) -> None:
    advance_to(journal, 0, State.TRAIN_STEP)
    journal.append(Kind.STATE_ENTERED, **state_entered(journal.run))
    journal.append(Kind.TRANSITION, **transition(journal.run, result={"skipped": True, "trained_tokens": 0}))
    plan = plan_at(journal, 2, State.ROLLOUT)
    assert (plan.redone_batches, plan.trained_tokens) == ((1,), 1001)


@pytest.mark.parametrize(
    ("batch", "state"),
    [(2, State.LOG), (3, State.PUBLISH_MODEL), (3, State.MAYBE_EVALUATE), (3, State.FINISHED)],
)
def test_nothing_is_restored_when_no_weights_are_needed_any_more(journal: Journal, batch: int, state: State) -> None:
    advance_to(journal, 2, State.ROLLOUT)
    save(journal, "000001", 1)
    plan = plan_at(journal, batch, state)
    assert (plan.weights_needed, plan.checkpoint, plan.redone_batches) == (False, None, ())
    assert "weights: not needed, nothing is restored" in plan.lines()


def test_a_finished_run_has_nothing_to_do(journal: Journal, tmp_path: Path) -> None:
    advance_to(journal, 3, State.FINISHED)
    journal.append(Kind.RUN_FINISHED, batches=3)
    plan = make_plan(journal.run, tmp_path)
    assert plan.finished
    assert plan.lines() == ["nothing to do: the run has finished, 3 batches"]


def test_a_new_run_starts_at_batch_0(journal: Journal, tmp_path: Path) -> None:
    plan = make_plan(journal.run, tmp_path)
    assert (plan.batch, plan.run_id, plan.lines()) == (0, "", ["a new run starts at batch 0"])
    advance_to(journal, 0, State.PUBLISH_MODEL)
    plan = make_plan(journal.run, tmp_path)
    assert (plan.run_id, plan.lines()) == ("run-1", ["a new run starts at batch 0"])


def test_a_finished_run_whose_horizon_grew_has_something_to_do(journal: Journal, tmp_path: Path) -> None:
    run = advance_to(journal, 3, State.FINISHED)
    journal.append(Kind.RUN_FINISHED, batches=3)
    journal.append(Kind.PROCESS_STARTED, **process_started(run, num_batches=5))
    plan = make_plan(run, tmp_path)
    assert plan.lines()[:2] == ["resumes at Rollout of batch 3, of 5 batches", "kept: 0 of 64 train rollouts"]
    assert plan.sampled_tokens == 6400


def test_kills_failures_and_the_last_words_are_told(journal: Journal, tmp_path: Path) -> None:
    run = advance_to(journal, 1, State.ROLLOUT)
    journal.append(Kind.PROCESS_STARTED, **process_started(run))
    journal.append(Kind.STATE_ENTERED, **state_entered(run))
    journal.append(Kind.PROCESS_STOPPED, **process_stopped(run, "failed", "ValueError: boom"))
    lines = make_plan(run, tmp_path).lines()
    assert lines[-3:] == [
        "so far: 2 processes, 1 of them killed",
        "last stop: failed (ValueError: boom)",
        "this batch and state failed 1 time",
    ]


def test_a_plan_is_plain_json(journal: Journal) -> None:
    advance_to(journal, 1, State.ROLLOUT)
    save(journal, "000001", 1)
    plan = plan_at(journal, 2, State.TRAIN_STEP)
    values = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert values["state"] == "TrainStep"
    assert values["checkpoint"]["name"] == "000001"
    assert values["redone_batches"] == [1]


@pytest.mark.parametrize("line", ["{bad", "[]", '{"group":0,"member":0,"last":true}'])
def test_a_stored_rollout_that_is_none_is_refused_with_its_place(journal: Journal, tmp_path: Path, line: str) -> None:
    store(tmp_path, 0, "train", [(0, 0, True)], tokens=10)
    with LineFile(tmp_path / "rollouts" / "000000.train.jsonl") as lines:
        lines.append(line)
    with pytest.raises(SideFileDamagedError, match=r"000000\.train\.jsonl, line 2: not a stored rollout") as caught:
        plan_at(journal, 0, State.ROLLOUT)
    assert caught.value.exit_code == 3
