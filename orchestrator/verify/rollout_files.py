"""The stored rollouts: those of finished states are what the journal says of them, those under way are sound lines."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestrator.errors import FaultFoundError
from orchestrator.journal.durable import sha256_of
from orchestrator.journal.records import eval_set_sizes
from orchestrator.names import State, counted
from orchestrator.rollouts.evaluation import by_set, measure
from orchestrator.rollouts.outcomes import PLAYS, Mode, Outcome, StoredRollout, count_outcomes, rollout_path, totals
from orchestrator.verify.evidence import RESTORE, Evidence, Move, lines_of


def played(move: Move) -> bool:
    """Whether the state that was left had rollouts played."""
    return move.state is State.ROLLOUT or (move.state is State.MAYBE_EVALUATE and bool(move.result["evaluated"]))


def check_rollouts(evidence: Evidence) -> str:
    """Every file that the journal names, and that of the state under way.

    Raises:
        FaultFoundError: a line or a file is damaged, or is not what the journal says.
    """
    num_files = num_rollouts = 0
    for move in evidence.moves():
        if played(move):
            num_files += 1
            num_rollouts += len(_check_finished(evidence, move))
    run = evidence.run
    unfinished = 0
    mode = PLAYS.get(run.state)
    if mode is not None and run.entries and rollout_path(evidence.log_path, run.batch, mode).exists():
        size = group_sizes(run.config, run.dataset, mode)
        unfinished = len(list(sound_rollouts(evidence.log_path, run.batch, mode, size)))
    under_way = f", {unfinished} of the state under way" if unfinished else ""
    return f"{counted(num_rollouts, 'rollout attempt')} in {counted(num_files, 'finished file')}{under_way}"


def group_sizes(config: Mapping[str, Any], dataset: Mapping[str, Any], mode: Mode) -> tuple[int, int]:
    """Groups, and members of each, that a state of ``mode`` plays."""
    if mode == "train":
        return config["batch_size"], config["group_size"]
    return sum(eval_set_sizes(dataset).values()), config["eval_group_size"]


def sound_rollouts(log_path: Path, batch: int, mode: Mode, size: tuple[int, int]) -> Iterator[StoredRollout]:
    """The rollouts of a file, line by line, each of which belongs there and is what was written.

    ``size`` is as ``group_sizes`` gives it.

    Raises:
        FaultFoundError: one does not, with line and byte offset.
    """
    path = rollout_path(log_path, batch, mode)
    attempts: dict[tuple[int, int], list[StoredRollout]] = defaultdict(list)
    tasks: dict[int, str] = {}
    for number, offset, line in lines_of(path):
        try:
            rollout = StoredRollout.from_json(line.decode())
            group, member = rollout.key.group, rollout.key.member
            problem = (
                _misplaced(rollout, batch, mode, size)
                or _unexpected_attempt(rollout, attempts[group, member])
                or _unlike_its_group(rollout, tasks.setdefault(group, rollout.task_sha256))
                or _impossible(rollout)
            )
            attempts[group, member].append(rollout)
        except (ValueError, KeyError, TypeError) as error:
            problem = f"not a stored rollout as it was written ({type(error).__name__}: {error})"
        if problem is not None:
            cure = f"{RESTORE}; where its state is not finished, deleting the file samples its rollouts again"
            raise FaultFoundError(path, line=number, offset=offset, problem=problem, cure=cure)
        yield rollout


def _misplaced(rollout: StoredRollout, batch: int, mode: Mode, size: tuple[int, int]) -> str | None:
    key, (num_groups, group_size) = rollout.key, size
    ours = (key.batch, key.mode) == (batch, mode)
    if not ours or key.group not in range(num_groups) or key.member not in range(group_size):
        return f"rollout {key} is none of the {num_groups} groups of {group_size} of batch {batch}, {mode}"
    for position, turn in enumerate(rollout.turns):
        if turn.policy_version != batch:
            return f"rollout {key}, turn {position}: policy version {turn.policy_version}, expected {batch}"
    return None


def _unexpected_attempt(rollout: StoredRollout, earlier: Sequence[StoredRollout]) -> str | None:
    if earlier and earlier[-1].last:
        return f"attempt {rollout.attempt} of rollout {rollout.key} after its last one, {earlier[-1].attempt}"
    if rollout.attempt != len(earlier):
        return f"attempt {rollout.attempt} of rollout {rollout.key} where attempt {len(earlier)} comes next"
    return None


def _unlike_its_group(rollout: StoredRollout, task_sha256: str) -> str | None:
    if rollout.task_sha256 == task_sha256:
        return None
    return f"rollout {rollout.key} played the task {rollout.task_sha256!r}, its group plays {task_sha256!r}"


def _impossible(rollout: StoredRollout) -> str | None:
    if rollout.outcome is not Outcome.SUCCEEDED:
        return None
    rewarded = rollout.reward is not None and math.isfinite(rollout.reward)
    played = bool(rollout.turns) and all(turn.valid for turn in rollout.turns)
    counted = next(iter(rollout.rewards[-1].values()), None) if rollout.rewards else rollout.reward
    if rewarded and played and rollout.last and rollout.error is None and counted == rollout.reward:
        return None
    return (
        f"rollout {rollout.key} cannot have succeeded: reward {rollout.reward}, {counted} given last, "
        f"{len(rollout.turns)} turns, of which "
        f"{sum(turn.valid for turn in rollout.turns)} are valid, last={rollout.last}, error={rollout.error is not None}"
    )


def _check_finished(evidence: Evidence, move: Move) -> list[StoredRollout]:
    mode = PLAYS[move.state]
    path = rollout_path(evidence.log_path, move.batch, mode)
    size = group_sizes(move.config, move.dataset, mode)
    rollouts = list(sound_rollouts(evidence.log_path, move.batch, mode, size))
    if (named := move.result["file"]) != str(path.relative_to(evidence.log_path)):
        raise evidence.record_fault(move.record, f"its file is {named!r}, expected that of its batch")
    if (found := sha256_of(path)) != move.result["sha256"]:
        problem = f"sha256 is {found}, the journal says {move.result['sha256']}: changed since it was finished"
        raise FaultFoundError(path, problem=problem, cure=RESTORE)
    # The file is the journaled one from here on, so where the two disagree it is the record that was changed.
    finished = [(rollout.key.group, rollout.key.member) for rollout in rollouts if rollout.last]
    if finished != [(group, member) for group in range(size[0]) for member in range(size[1])]:
        problem = f"its file holds {len(finished)} finished rollouts, expected {size[0]} groups of {size[1]} in order"
        raise evidence.record_fault(move.record, problem)
    for name, value in totals(rollouts).items():
        if move.result.get(name) != value:
            raise evidence.record_fault(move.record, f"{name} is {move.result.get(name)}, its file gives {value}")
    if "replay_mismatches" in move.result:  # an earlier version did not count them
        area = "rollout" if move.state is State.ROLLOUT else "test"
        counted = {f"{area}/replay_mismatches": float(move.result["replay_mismatches"])}
        check_metrics(evidence, move, counted)
    if move.state is State.MAYBE_EVALUATE:
        group_size, threshold = move.config["eval_group_size"], move.config.get("pass_threshold")
        for area, attempts in by_set(rollouts, eval_set_sizes(move.dataset)).items():
            check_metrics(evidence, move, metrics_of(attempts, area))
            if threshold is not None:  # runs that are older than the field measured less
                members = [rollout for rollout in attempts if rollout.last]
                measures = measure(members, group_size=group_size, pass_threshold=threshold)
                check_metrics(evidence, move, {f"{area}/{name}": value for name, value in measures.items()})
    return rollouts


def check_metrics(evidence: Evidence, move: Move, expected: Mapping[str, float]) -> None:
    """Whether the journaled metrics of a state hold ``expected``, which its side files give.

    Raises:
        FaultFoundError: one is another number; the record is at fault, for the side files are the journaled ones.
    """
    for name, value in expected.items():
        if (found := move.result["metrics"].get(name)) != value:
            raise evidence.record_fault(move.record, f"metrics.{name} is {found}, its file gives {value}")


def metrics_of(rollouts: Sequence[StoredRollout], area: str) -> dict[str, float]:
    """The metrics of a state's rollouts that need nothing but counting, under ``area/``."""
    members = [rollout for rollout in rollouts if rollout.last]
    succeeded = [rollout for rollout in members if rollout.outcome is Outcome.SUCCEEDED]
    rewards = [rollout.reward for rollout in succeeded if rollout.reward is not None]
    counted = {
        "total": len(members),
        **count_outcomes(members),
        "retried": len(rollouts) - len(members),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
    }
    metrics = {f"{area}/{name}": float(value) for name, value in counted.items()}
    return metrics | ({f"{area}/reward_mean": fmean(rewards)} if rewards else {})
