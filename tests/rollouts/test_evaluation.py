"""Laws of evaluation: pass@k is what drawing k samples gives, and what did not succeed is in no measure."""

from itertools import combinations
from math import sqrt
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.rollouts.evaluation import by_set, measure, pass_at_k, standard_error
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn

TURN = Turn((1, 2), (3, 4), (-0.5, -0.25), 3, "stop")


def played(*groups: list[float | None]) -> list[StoredRollout]:
    """A rollout a reward, by task; None is one that timed out."""
    return [
        StoredRollout(
            RolloutKey(3, "eval", group, member),
            0,
            True,
            Outcome.TIMED_OUT if reward is None else Outcome.SUCCEEDED,
            reward,
            (TURN,),
        )
        for group, rewards in enumerate(groups)
        for member, reward in enumerate(rewards)
    ]


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_all_draws_of_k_in_which_one_passes(passed: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(passed)))
    draws = list(combinations(passed, k))
    assert pass_at_k(len(passed), sum(passed), k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_the_standard_error_is_the_usual_one_and_counts_what_belongs_together_once() -> None:
    values = [0.0, 1.0, 0.5, 0.25]
    assert standard_error([[value] for value in values]) == pytest.approx(stdev(values) / sqrt(len(values)))
    assert standard_error([[value] * 5 for value in values]) == pytest.approx(stdev(values) / sqrt(len(values)))
    assert standard_error([[1.0, 0.0]]) is None
    assert standard_error([[], [1.0]]) is None


def test_rollouts_that_did_not_succeed_are_counted_and_in_no_measure() -> None:
    measures = measure(played([1.0, None, 0.0, 1.0], [None] * 4, [0.0] * 4), group_size=4, pass_threshold=1.0)
    assert (measures["tasks"], measures["tasks_incomplete"]) == (3, 2)
    assert measures["pass_at_1"] == pytest.approx(fmean([2 / 3, 0.0]))
    assert measures["pass_at_2"] == pytest.approx(fmean([1.0, 0.0]))
    assert measures["pass_at_4"] == 0.0, "only the third task has four"
    assert set(measures) == {"tasks", "tasks_incomplete", "reward_stderr", "pass_at_1", "pass_at_2", "pass_at_4"}
    assert "pass_at_1" not in measure(played([None], [None]), group_size=1, pass_threshold=1.0)


def test_to_pass_is_to_reach_the_threshold() -> None:
    rollouts = played([0.5, 0.49, 0.2])
    assert measure(rollouts, group_size=3, pass_threshold=0.5)["pass_at_1"] == pytest.approx(1 / 3)
    assert measure(rollouts, group_size=3, pass_threshold=0.2)["pass_at_1"] == 1.0
    assert [name for name in measure(rollouts, group_size=3, pass_threshold=0.5) if "pass" in name] == [
        "pass_at_1",
        "pass_at_2",
        "pass_at_3",
    ]


def test_each_set_has_the_groups_that_come_after_those_of_the_sets_before_it() -> None:
    sets = by_set(played([1.0], [0.5], [0.0]), {"test": 1, "test/hard": 2})
    assert {area: [rollout.reward for rollout in rollouts] for area, rollouts in sets.items()} == {
        "test": [1.0],
        "test/hard": [0.5, 0.0],
    }
