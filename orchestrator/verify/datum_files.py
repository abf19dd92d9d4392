"""The stored train steps: each is what the journal says of it, and trains on what the batch's rollouts sampled."""

from collections.abc import Sequence

import numpy as np
import tinker

from orchestrator.errors import FaultFoundError, SideFileDamagedError
from orchestrator.names import State, counted
from orchestrator.rollouts.outcomes import Outcome, StoredRollout
from orchestrator.training.datums import TrainStepInput, check, datum_path, load
from orchestrator.verify.evidence import RESTORE, Evidence, Move
from orchestrator.verify.rollout_files import check_metrics, group_sizes, metrics_of, sound_rollouts

Sampled = list[tuple[int, float]]
"""Sampled tokens, each with its logprob as a float32 holds it."""
TENSORS = ("target_tokens", "logprobs", "advantages", "mask")
"""What every stored datum has, one value a token."""


def check_datums(evidence: Evidence) -> str:
    """Every train step that the journal knows, and the one under way.

    Raises:
        FaultFoundError: a file is damaged, or is not what the journal says.
    """
    num_steps = num_datums = skipped = 0
    rollouts: list[StoredRollout] = []
    for move in evidence.moves():
        if move.state is State.ROLLOUT:
            size = group_sizes(move.config, move.dataset, "train")
            rollouts = list(sound_rollouts(evidence.log_path, move.batch, "train", size))
        if move.state is State.TRAIN_STEP:
            check_metrics(evidence, move, metrics_of(rollouts, "rollout"))
            if move.result["skipped"]:
                _check_skipped(evidence, move)
                skipped += 1
                continue
            step = _check_journaled(evidence, move, rollouts)
            num_steps, num_datums = num_steps + 1, num_datums + len(step.datums)
    run = evidence.run
    under_way = run.state is State.TRAIN_STEP and datum_path(evidence.log_path, run.batch).exists()
    if under_way:
        _check_origin(evidence, _load(evidence, run.batch), rollouts)
    return f"{counted(num_datums, 'datum')} of {counted(num_steps + under_way, 'train step')}, {skipped} skipped"


def _check_skipped(evidence: Evidence, move: Move) -> None:
    nothing = {"optim_steps": 0, "datums": 0, "trained_tokens": 0, "file": None, "sha256": None}
    for name, value in nothing.items():
        if move.result[name] != value:
            problem = f"a skipped step has {name}={move.result[name]}, expected {value}"
            raise evidence.record_fault(move.record, problem)


def _check_journaled(evidence: Evidence, move: Move, rollouts: Sequence[StoredRollout]) -> TrainStepInput:
    path = datum_path(evidence.log_path, move.batch)
    if (named := move.result["file"]) != str(path.relative_to(evidence.log_path)):
        raise evidence.record_fault(move.record, f"its file is {named!r}, expected that of its batch")
    step = _load(evidence, move.batch, sha256=move.result["sha256"])
    _check_origin(evidence, step, rollouts)
    facts = {
        "optim_steps": step.optim_steps,
        "datums": len(step.datums),
        "trained_tokens": step.trained_tokens,
        "learning_rate": step.learning_rate,
        "reason": None,
    }
    for name, value in facts.items():
        if move.result[name] != value:
            raise evidence.record_fault(move.record, f"{name} is {move.result[name]}, its file gives {value}")
    check_metrics(evidence, move, step.metrics | {"optim/lr": step.learning_rate})
    return step


def _load(evidence: Evidence, batch: int, *, sha256: str | None = None) -> TrainStepInput:
    path = datum_path(evidence.log_path, batch)
    try:
        check(evidence.log_path, batch, sha256=sha256)
        step = load(evidence.log_path, batch)
    except SideFileDamagedError as error:
        problem = str(error).removeprefix(f"{path}: ").partition("; ")[0]
        raise FaultFoundError(path, problem=problem, cure=RESTORE) from error
    for number, datum in enumerate(step.datums):
        lengths = {name: len(datum.loss_fn_inputs[name].data) for name in TENSORS if name in datum.loss_fn_inputs}
        if lengths != dict.fromkeys(TENSORS, datum.model_input.length):
            problem = f"datum {number} of {datum.model_input.length} tokens has tensors of {lengths}"
            raise FaultFoundError(path, problem=problem, cure=RESTORE)
    for order in step.orders:
        if sorted(order) != list(range(len(step.datums))):
            raise FaultFoundError(path, problem=f"an order of its datums is no permutation: {order}", cure=RESTORE)
    return step


def _check_origin(evidence: Evidence, step: TrainStepInput, rollouts: Sequence[StoredRollout]) -> None:
    """What a step trains on is, in order, all that some of the succeeded rollouts sampled, token for token."""
    trained = [pair for datum in step.datums for pair in _masked(datum)]
    ends = {0}  # how far into `trained` the rollouts so far can reach
    for rollout in rollouts:
        if rollout.outcome is Outcome.SUCCEEDED:
            sampled = _sampled(rollout)
            ends |= {end + len(sampled) for end in ends if trained[end : end + len(sampled)] == sampled}
    if len(trained) not in ends:
        raise FaultFoundError(
            datum_path(evidence.log_path, step.batch),
            problem=f"its {len(trained)} trained tokens and logprobs are not those that the rollouts of batch "
            f"{step.batch} sampled (they agree in the first {max(ends)})",
            cure=RESTORE,
        )


def _masked(datum: tinker.Datum) -> Sampled:
    tokens, logprobs, mask = (datum.loss_fn_inputs[name].data for name in ("target_tokens", "logprobs", "mask"))
    return [(int(token), float(logprob)) for token, logprob, kept in zip(tokens, logprobs, mask, strict=True) if kept]


def _sampled(rollout: StoredRollout) -> Sampled:
    return [
        (token, float(np.float32(logprob)))
        for turn in rollout.turns
        for token, logprob in zip(turn.sampled_tokens, turn.logprobs, strict=True)
    ]
