"""Laws of the training batch: what was sampled is what is trained, and only what can be compared is trained at all."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import tinker
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import StateFailedError
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn
from orchestrator.rollouts.trajectories import TrainingBatch, datum_order, evaluation_metrics, form_training_batch

BATCH = 3
TURN = Turn((1, 2), (3, 4), (-0.5, -0.25), BATCH, "stop")

Ending = float | Outcome


def rollout(group: int, member: int, ending: Ending, turns: Sequence[Turn] = (TURN,)) -> StoredRollout:
    """A member that ended with a reward, or without one in another outcome."""
    outcome = Outcome.SUCCEEDED if isinstance(ending, float) else ending
    reward = ending if isinstance(ending, float) else None
    error = None if isinstance(ending, float) else "KeyError at my_agent.py:8: the tool broke"
    return StoredRollout(RolloutKey(BATCH, "train", group, member), 0, True, outcome, reward, tuple(turns), error)


def batch_of(*groups: Sequence[Ending]) -> list[StoredRollout]:
    return [
        rollout(number, member, ending) for number, group in enumerate(groups) for member, ending in enumerate(group)
    ]


def form(rollouts: Sequence[StoredRollout], group_size: int, **options: Any) -> TrainingBatch:
    return form_training_batch(rollouts, policy_version=BATCH, group_size=group_size, **options)


def inputs(datum: tinker.Datum) -> dict[str, list[float]]:
    return {name: tensor.tolist() for name, tensor in datum.loss_fn_inputs.items()}


def trained_advantages(batch: TrainingBatch) -> list[float]:
    return [max(inputs(datum)["advantages"], key=abs) for datum in batch.datums]


def test_advantages_are_computed_over_valid_members_only() -> None:
    """H9."""
    batch = form(batch_of([1.0, 0.0, Outcome.FAILED, Outcome.FAILED]), 4)
    assert trained_advantages(batch) == [0.5, -0.5]
    assert batch.metrics["rollout/failed"] == 2
    assert batch.metrics["rollout/reward_mean"] == 0.5
    assert batch.counts.members_dropped == 2


def test_a_reward_that_is_no_number_is_left_out_and_counted() -> None:
    """H11."""
    batch = form(batch_of([1.0, Outcome.INVALID, 0.0, 0.0]), 4)
    assert trained_advantages(batch) == pytest.approx([0.667, -0.333, -0.333], abs=1e-3)
    assert batch.metrics["rollout/invalid"] == 1
    assert all(math.isfinite(value) for value in batch.metrics.values())


def test_with_all_groups_constant_nothing_is_trained_and_the_reason_is_told() -> None:
    """H10."""
    batch = form(batch_of([1.0, 1.0], [0.0, 0.0]), 2)
    assert batch.datums == []
    assert (batch.counts.kept, batch.counts.constant) == (0, 2)
    assert batch.skip_reason is not None
    assert "2 with equal rewards" in batch.skip_reason
    assert batch.metrics["rollout/reward_mean"] == 0.5
    assert batch.metrics["rollout/groups_constant"] == 2


def test_constant_groups_are_left_out_unless_asked_for() -> None:
    rollouts = batch_of([1.0, 1.0], [0.0, 1.0])
    assert trained_advantages(form(rollouts, 2)) == [-0.5, 0.5]
    assert trained_advantages(form(rollouts, 2, remove_constant=False)) == [0, 0, -0.5, 0.5]


def test_drop_group_leaves_out_the_whole_group_of_a_failure() -> None:
    batch = form(batch_of([1.0, 0.0, Outcome.TIMED_OUT], [1.0, 0.0, 0.5]), 3, on_failure="drop_group")
    assert trained_advantages(batch) == [0.5, -0.5, 0.0]
    assert (batch.counts.kept, batch.counts.failed, batch.counts.members_dropped) == (1, 1, 0)


def test_stop_names_the_first_failure_its_kind_and_where_the_whole_error_is() -> None:
    told = r"1 of 2 .*000003-train-0000-001: failed \(KeyError at my_agent\.py:8\); rollouts/000003\.train\.jsonl"
    with pytest.raises(StateFailedError, match=told) as stopped:
        form(batch_of([1.0, Outcome.FAILED]), 2, on_failure="stop")
    assert "the tool broke" not in str(stopped.value), "a message may quote a prompt"


def test_a_single_valid_member_has_nothing_to_be_compared_with() -> None:
    batch = form(batch_of([1.0, Outcome.EMPTY], [Outcome.FAILED, Outcome.FAILED]), 2, remove_constant=False)
    assert batch.datums == []
    assert (batch.counts.too_small, batch.counts.failed, batch.counts.kept) == (1, 1, 0)


def test_a_batch_without_any_reward_reports_none_rather_than_zero() -> None:
    batch = form(batch_of([Outcome.FAILED, Outcome.EMPTY]), 2)
    assert batch.datums == []
    assert not [name for name in batch.metrics if "reward" in name]
    assert batch.metrics["rollout/empty"] == 1


@given(
    groups=st.lists(
        st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.sampled_from(list(Outcome)[1:])), min_size=3, max_size=3),
        min_size=1,
        max_size=5,
    ),
    on_failure=st.sampled_from(["drop_member", "drop_group"]),
    remove_constant=st.booleans(),
    data=st.data(),
)
def test_every_group_is_accounted_for_once_whatever_the_order_of_finishing(
    groups: list[list[Ending]], on_failure: str, remove_constant: bool, data: st.DataObject
) -> None:
    rollouts = batch_of(*groups)
    batch = form(rollouts, 3, on_failure=on_failure, remove_constant=remove_constant)
    counts = batch.counts
    assert counts.kept + counts.constant + counts.failed + counts.too_small == len(groups)
    assert len(batch.datums) == 3 * counts.kept - counts.members_dropped
    assert (batch.skip_reason is None) == (counts.kept > 0)
    shuffled = form(data.draw(st.permutations(rollouts)), 3, on_failure=on_failure, remove_constant=remove_constant)
    assert [inputs(datum) for datum in shuffled.datums] == [inputs(datum) for datum in batch.datums]
    assert shuffled.metrics == batch.metrics


def test_an_extending_episode_is_one_datum_token_for_token() -> None:
    first = Turn((1, 2), (3, 4), (-0.5, -0.25), BATCH, "stop")
    second = Turn((1, 2, 3, 4, 5, 6), (7,), (-1.0,), BATCH, "length")
    batch = form([rollout(0, 0, 1.0, (first, second)), rollout(0, 1, 0.0)], 2)
    datum = batch.datums[0]
    assert datum.model_input.to_ints() == [1, 2, 3, 4, 5, 6]
    assert inputs(datum) == {
        "target_tokens": [2, 3, 4, 5, 6, 7],
        "logprobs": [0, -0.5, -0.25, 0, 0, -1.0],
        "advantages": [0, 0.5, 0.5, 0, 0, 0.5],
        "mask": [0, 1, 1, 0, 0, 1],
    }
    assert batch.datum_splits == 0
    assert batch.metrics["env/all/turns_per_episode"] == 1.5


def test_an_episode_that_does_not_extend_is_split_and_counted() -> None:
    first = Turn((1, 2), (3, 4), (-0.5, -0.25), BATCH, "stop")
    second = Turn((1, 2, 9, 4, 5), (7,), (-1.0,), BATCH, "stop")
    batch = form([rollout(0, 0, 1.0, (first, second)), rollout(0, 1, 0.0)], 2)
    assert [datum.model_input.to_ints() for datum in batch.datums] == [[1, 2, 3], [1, 2, 9, 4, 5], [1, 2, 3]]
    assert inputs(batch.datums[1]) == {
        "target_tokens": [2, 9, 4, 5, 7],
        "logprobs": [0, 0, 0, 0, -1.0],
        "advantages": [0, 0, 0, 0, 0.5],
        "mask": [0, 0, 0, 0, 1],
    }
    assert batch.datum_splits == 1
    assert batch.metrics["rollout/datum_splits"] == 1


def test_turns_of_another_policy_are_refused() -> None:
    stale = replace(TURN, policy_version=2)
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, 0.0, (TURN, stale))]
    with pytest.raises(StateFailedError, match=r"000003-train-0000-001, turn 1: .* version 2, expected 3"):
        form(rollouts, 2)


def test_only_last_attempts_count_and_there_is_one_a_member() -> None:
    first = replace(rollout(0, 0, Outcome.FAILED), last=False)
    second = replace(rollout(0, 0, 1.0), attempt=1)
    batch = form([second, rollout(0, 1, 0.0), first], 2)
    assert trained_advantages(batch) == [0.5, -0.5]
    assert (batch.metrics["rollout/failed"], batch.metrics["rollout/retried"]) == (0, 1)
    assert batch.metrics["rollout/sampled_tokens"] == 6
    with pytest.raises(StateFailedError, match=r"two attempts \(0 and 1\)"):
        form([second, rollout(0, 1, 0.0), replace(first, last=True)], 2)


def test_a_missing_member_is_refused_rather_than_taken_for_a_smaller_group() -> None:
    with pytest.raises(StateFailedError, match=r"group 0: the finished members are \[0, 2\], expected 0 to 2"):
        form([rollout(0, 0, 1.0), rollout(0, 2, 0.0)], 3)


def test_a_reward_beyond_single_precision_is_refused_before_it_becomes_nan() -> None:
    with pytest.raises(StateFailedError, match="expected finite"):
        form(batch_of([1e300, 0.0]), 2)


def test_evaluation_averages_what_succeeded_under_test_names() -> None:
    rollouts = batch_of([1.0, Outcome.FAILED], [0.0, 0.5])
    sizes = {"test": 2}
    metrics = evaluation_metrics(rollouts, policy_version=BATCH, set_sizes=sizes, group_size=2, pass_threshold=1.0)
    assert metrics["test/reward_mean"] == 0.5
    assert (metrics["test/succeeded"], metrics["test/failed"], metrics["test/total"]) == (3, 1, 4)
    assert metrics["test/env/all/turns_per_episode"] == 1
    assert all(name.startswith("test/") for name in metrics)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3), st.integers(0, 20))
def test_the_datum_order_is_a_permutation_that_its_arguments_decide(
    seed: int, batch: int, epoch: int, count: int
) -> None:
    order = datum_order(seed, batch, epoch, count)
    assert sorted(order) == list(range(count))
    assert order == datum_order(seed, batch, epoch, count)


def test_each_pass_over_each_batch_has_its_own_order() -> None:
    orders = {tuple(datum_order(seed, batch, epoch, 20)) for seed in (1, 2) for batch in (1, 2) for epoch in (1, 2)}
    assert len(orders) == 8
