"""From a batch's stored rollouts to what is trained on: tinker-cookbook's groups, their advantages, and datums."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Literal

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.data_processing import (
    assemble_training_data,
    compute_advantages,
    remove_constant_reward_groups,
)
from tinker_cookbook.rl.metric_util import compute_trajectory_metrics
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.utils.misc_utils import all_same

from orchestrator.errors import StateFailedError
from orchestrator.rollouts.evaluation import by_set, measure
from orchestrator.rollouts.outcomes import Outcome, StoredRollout, Turn, count_outcomes, kind_of_error, rollout_path

OnFailure = Literal["drop_member", "drop_group", "stop"]


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """What became of a batch's groups: ``kept + constant + failed + too_small`` is their number."""

    kept: int
    """Trained on."""
    constant: int
    """Left out because the valid members' rewards are all equal."""
    failed: int
    """Left out because no member succeeded, or under ``drop_group`` because one did not."""
    too_small: int
    """Left out because a single member succeeded: there is nothing to compare its reward with."""
    members_dropped: int
    """Members of the kept groups that did not succeed and are not trained on."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The datums of one batch, in the order of groups and members, and what is worth knowing about them."""

    datums: list[tinker.Datum]
    """``loss_fn_inputs``: target_tokens, logprobs, advantages, mask, each of shape (T,). Empty: nothing to train on."""
    counts: GroupCounts
    datum_splits: int
    """Datums beyond one a trajectory: how often a prompt did not extend the tokens before it."""
    metrics: dict[str, float]
    """Finite numbers under ``area/name``; a mean over nothing is left out rather than called 0."""

    @property
    def skip_reason(self) -> str | None:
        """Why there is nothing to train on; None where there is something."""
        if self.datums:
            return None
        groups = {
            "with equal rewards": self.counts.constant,
            "failed": self.counts.failed,
            "with a single valid member": self.counts.too_small,
        }
        return "no group to learn from: " + ", ".join(f"{count} {why}" for why, count in groups.items() if count)


def form_training_batch(
    rollouts: Sequence[StoredRollout],
    *,
    policy_version: int,
    group_size: int,
    on_failure: OnFailure = "drop_member",
    remove_constant: bool = True,
) -> TrainingBatch:
    """The datums of the training rollouts of one batch, advantages centred over the valid members of each group.

    ``rollouts`` holds every attempt at every member, in any order; the last attempts count. Under ``remove_constant``
    a batch whose groups are all constant gives no datum.

    Raises:
        StateFailedError: a member is missing or stored twice; a turn was sampled under another policy than
            ``policy_version``; a reward is too large to train on; or ``on_failure`` is ``stop`` and a member failed.
    """
    members = _last_attempts(rollouts, policy_version)
    if on_failure == "stop":
        _refuse_failures(members)
    kept: list[TrajectoryGroup] = []
    with_reward: list[TrajectoryGroup] = []
    left_out: Counter[str] = Counter()
    for group, iterator in groupby(members, key=lambda rollout: rollout.key.group):
        stored = list(iterator)
        _check_members(stored, group, group_size)
        valid = [rollout for rollout in stored if rollout.outcome is Outcome.SUCCEEDED]
        if valid:
            with_reward.append(_trajectory_group(valid))
        if not valid or (on_failure == "drop_group" and len(valid) < group_size):
            left_out["failed"] += 1
        elif len(valid) == 1:
            left_out["too_small"] += 1
        else:
            kept.append(with_reward[-1])
    if remove_constant:
        comparable = len(kept)
        # The cookbook's filter never returns nothing: given constant groups only, it lets the first one through.
        kept = [group for group in remove_constant_reward_groups(kept) if not all_same(group.get_total_rewards())]
        left_out["constant"] = comparable - len(kept)
    trained = sum(len(group.trajectories_G) for group in kept)
    counts = GroupCounts(
        kept=len(kept),
        constant=left_out["constant"],
        failed=left_out["failed"],
        too_small=left_out["too_small"],
        members_dropped=len(kept) * group_size - trained,
    )
    datums = _assemble(kept)
    metrics = {
        **_rollout_metrics(rollouts, members, with_reward, area="rollout"),
        "rollout/groups_kept": float(counts.kept),
        "rollout/groups_constant": float(counts.constant),
        "rollout/groups_failed": float(counts.failed),
        "rollout/groups_too_small": float(counts.too_small),
        "rollout/members_dropped": float(counts.members_dropped),
        "rollout/datums": float(len(datums)),
        "rollout/datum_splits": float(len(datums) - trained),
    }
    return TrainingBatch(datums, counts, len(datums) - trained, metrics)


def evaluation_metrics(
    rollouts: Sequence[StoredRollout],
    *,
    policy_version: int,
    set_sizes: Mapping[str, int],
    group_size: int,
    pass_threshold: float,
) -> dict[str, float]:
    """The metrics of one evaluation: for each set outcomes, mean reward of those that succeeded, ``measure``, lengths.

    ``set_sizes`` holds the number of tasks of each set under the area of its metrics, e.g. ``test``, in the order of
    the tasks' groups. A mean over nothing is left out.

    Raises:
        StateFailedError: a rollout is stored twice, or a turn was sampled under another policy than ``policy_version``.
    """
    metrics: dict[str, float] = {}
    members = by_set(_last_attempts(rollouts, policy_version), set_sizes)
    for area, attempts in by_set(rollouts, set_sizes).items():
        valid = [rollout for rollout in members[area] if rollout.outcome is Outcome.SUCCEEDED]
        groups = [_trajectory_group(list(group)) for _, group in groupby(valid, key=lambda rollout: rollout.key.group)]
        metrics |= _rollout_metrics(attempts, members[area], groups, area=area)
        measures = measure(members[area], group_size=group_size, pass_threshold=pass_threshold)
        metrics |= {f"{area}/{name}": value for name, value in measures.items()}
    return metrics


def datum_order(seed: int, batch: int, epoch: int, count: int) -> list[int]:
    """The order in which pass ``epoch`` over batch ``batch`` takes its ``count`` datums: a pure function of these."""
    order = list(range(count))
    Random(f"datums {seed} {batch} {epoch}").shuffle(order)  # noqa: S311 - an order, not a secret
    return order


def _last_attempts(rollouts: Sequence[StoredRollout], policy_version: int) -> list[StoredRollout]:
    last = sorted((rollout for rollout in rollouts if rollout.last), key=lambda rollout: (rollout.key, rollout.attempt))
    for rollout, following in pairwise(last):
        if rollout.key == following.key:
            raise StateFailedError(
                f"rollout {rollout.key}: two attempts ({rollout.attempt} and {following.attempt}) are stored as the "
                "last one, expected one; `python -m orchestrator verify` checks the run directory"
            )
    for rollout in last:
        for number, turn in enumerate(rollout.turns):
            if turn.policy_version != policy_version:
                raise StateFailedError(
                    f"rollout {rollout.key}, turn {number}: sampled under policy version {turn.policy_version}, "
                    f"expected {policy_version}; a batch is trained only on turns of its own policy"
                )
    return last


def _refuse_failures(members: Sequence[StoredRollout]) -> None:
    failures = [rollout for rollout in members if rollout.outcome is not Outcome.SUCCEEDED]
    if failures:
        first = failures[0]
        path = rollout_path(Path(), first.key.batch, first.key.mode)
        raise StateFailedError(
            f"{len(failures)} of {len(members)} rollouts did not succeed and on_failure=stop; the first is "
            f"{first.key}: {kind_of_error(first)}; {path} in the run directory has the whole error. Mend its cause, "
            "or start a run with on_failure=drop_member"
        )


def _check_members(stored: Sequence[StoredRollout], group: int, group_size: int) -> None:
    found = [rollout.key.member for rollout in stored]
    if found != list(range(group_size)):
        raise StateFailedError(
            f"batch {stored[0].key.batch}, group {group}: the finished members are {found}, "
            f"expected 0 to {group_size - 1}; run the same command again to collect what is missing"
        )


def _trajectory_group(valid: Sequence[StoredRollout]) -> TrajectoryGroup:
    """The cookbook's form of a group's valid members; the whole reward of each is its final reward."""
    return TrajectoryGroup(
        trajectories_G=[_trajectory(rollout.turns) for rollout in valid],
        final_rewards_G=[_reward(rollout) for rollout in valid],
        metrics_G=[{} for _ in valid],
    )


def _trajectory(turns: Sequence[Turn]) -> Trajectory:
    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(list(turn.prompt_tokens)),
            ac=TokensWithLogprobs(list(turn.sampled_tokens), list(turn.logprobs)),
            reward=0.0,
            episode_done=number == len(turns),
        )
        for number, turn in enumerate(turns, start=1)
    ]
    return Trajectory(transitions, final_ob=tinker.ModelInput.empty())


def _reward(rollout: StoredRollout) -> float:
    if rollout.reward is None or not rollout.turns or not all(turn.valid for turn in rollout.turns):
        raise StateFailedError(
            f"rollout {rollout.key}: stored as succeeded with reward {rollout.reward} and {len(rollout.turns)} turns, "
            "expected a reward and one or more turns with a logprob for each sampled token"
        )
    return float(rollout.reward)


def _assemble(groups: list[TrajectoryGroup]) -> list[tinker.Datum]:
    advantages = compute_advantages(groups)
    for group, advantages_in_group in zip(groups, advantages, strict=True):
        if not advantages_in_group.isfinite().all():
            raise StateFailedError(
                f"the rewards {group.get_total_rewards()} of a group give the advantages "
                f"{advantages_in_group.tolist()}, expected finite ones; keep rewards within single precision"
            )
    return assemble_training_data(groups, advantages)[0]


def _rollout_metrics(
    rollouts: Sequence[StoredRollout],
    members: Sequence[StoredRollout],
    groups: list[TrajectoryGroup],
    *,
    area: str,
) -> dict[str, float]:
    """Counts over ``members``, means over ``groups`` (the valid members); all attempts sampled tokens."""
    metrics: Mapping[str, float] = {
        "total": len(members),
        **count_outcomes(members),
        "retried": len(rollouts) - len(members),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
    }
    named = {f"{area}/{name}": float(value) for name, value in metrics.items()}
    if groups:
        rewards = [reward for group in groups for reward in group.get_total_rewards()]
        named[f"{area}/reward_mean"] = fmean(rewards)
        prefix = "" if area == "rollout" else f"{area}/"
        named |= {f"{prefix}{name}": float(value) for name, value in compute_trajectory_metrics(groups, []).items()}
    return {name: value for name, value in named.items() if math.isfinite(value)}
