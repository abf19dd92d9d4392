"""What an evaluation measures beyond counts: how sure its mean reward is, and pass@k."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import comb, sqrt
from statistics import fmean

from orchestrator.rollouts.outcomes import Outcome, StoredRollout


def measure(members: Sequence[StoredRollout], *, group_size: int, pass_threshold: float) -> dict[str, float]:
    """Measures of one evaluation set from the last attempts at its rollouts, ``group_size`` a task.

    ``tasks`` is their number and ``tasks_incomplete`` how many have a rollout that did not succeed. Such rollouts are
    in no measure: they are neither a reward of 0 nor a failure to pass.

    ``reward_stderr`` is the standard error of the mean reward, tasks taken as drawn at random and the rollouts of one
    task as belonging together; left out where fewer than two tasks have a reward.

    ``pass_at_k``, for k of 1, 2, 4, ... and ``group_size``, is the probability that at least one of k rollouts of a
    task passes, averaged over the tasks of which at least k rollouts succeeded; left out where there is none. To pass
    is to be rewarded with ``pass_threshold`` or more.
    """
    rewards: dict[int, list[float]] = {rollout.key.group: [] for rollout in members}
    for rollout in members:
        if rollout.outcome is Outcome.SUCCEEDED and rollout.reward is not None:
            rewards[rollout.key.group].append(rollout.reward)
    measures = {
        "tasks": float(len(rewards)),
        "tasks_incomplete": float(sum(len(group) < group_size for group in rewards.values())),
    }
    if (error := standard_error(list(rewards.values()))) is not None:
        measures["reward_stderr"] = error
    for k in _ks(group_size):
        rates = [
            pass_at_k(len(group), sum(reward >= pass_threshold for reward in group), k)
            for group in rewards.values()
            if len(group) >= k
        ]
        if rates:
            measures[f"pass_at_{k}"] = fmean(rates)
    return measures


def by_set(rollouts: Sequence[StoredRollout], sizes: Mapping[str, int]) -> dict[str, list[StoredRollout]]:
    """The rollouts of each evaluation set; ``sizes`` has each one's number of tasks, in the order of their groups."""
    set_of_group = [name for name, size in sizes.items() for _ in range(size)]
    sets: dict[str, list[StoredRollout]] = defaultdict(list)
    for rollout in rollouts:
        sets[set_of_group[rollout.key.group]].append(rollout)
    return sets


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """The unbiased estimate of the probability that one of ``k`` samples passes, from ``num_samples`` >= ``k`` of them.

    One minus the share of the sets of k samples in which none passed: equation 1 of Chen et al. 2021, "Evaluating
    Large Language Models Trained on Code", arXiv:2107.03374.
    """
    return 1.0 - comb(num_samples - num_passed, k) / comb(num_samples, k)


def standard_error(groups: Sequence[Sequence[float]]) -> float | None:
    """The standard error of the mean over all values, where values of one group are not independent.

    The cluster-robust estimate; with one value a group it is the usual one. None with fewer than two groups.
    """
    groups = [group for group in groups if group]
    if len(groups) < 2:
        return None
    values = [value for group in groups for value in group]
    mean = fmean(values)
    squares = sum(sum(value - mean for value in group) ** 2 for group in groups)
    return sqrt(squares * len(groups) / (len(groups) - 1)) / len(values)


def _ks(group_size: int) -> list[int]:
    powers = [1 << exponent for exponent in range(group_size.bit_length()) if 1 << exponent < group_size]
    return [*powers, group_size]
