"""Which sampled turns a run's stored datums train, to be compared with those that were captured."""

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import tinker

from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.rollouts.outcomes import Outcome, StoredRollout, read_rollouts, rollout_path
from orchestrator.training.datums import load

TrainedTurn = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""All tokens before what was sampled, the sampled tokens, and the logprob of each as a float32."""


def captured_turns(log_path: Path, batch: int) -> Counter[TrainedTurn]:
    """The turns of the batch's succeeded rollouts, but for groups in which all rewards are equal."""
    groups: defaultdict[int, list[StoredRollout]] = defaultdict(list)
    sha256 = read_journal(log_path).run.batches[batch].results[State.ROLLOUT]["sha256"]
    for rollout in read_rollouts(rollout_path(log_path, batch, "train"), sha256=sha256):
        if rollout.last and rollout.outcome is Outcome.SUCCEEDED:
            groups[rollout.key.group].append(rollout)
    learned_from = [group for group in groups.values() if len({rollout.reward for rollout in group}) > 1]
    return Counter(
        (turn.prompt_tokens, turn.sampled_tokens, _float32(turn.logprobs))
        for group in learned_from
        for rollout in group
        for turn in rollout.turns
    )


def trained_turns(log_path: Path, batch: int) -> Counter[TrainedTurn]:
    """The turns in the batch's stored datums: each run of tokens under the mask, with every token before it."""
    return Counter(turn for datum in load(log_path, batch).datums for turn in _turns(datum))


def _turns(datum: tinker.Datum) -> Iterator[TrainedTurn]:
    inputs = datum.loss_fn_inputs
    tokens = (*datum.model_input.to_ints(), int(inputs["target_tokens"].data[-1]))
    logprobs = _float32(inputs["logprobs"].data)
    targets = [position for position, mask in enumerate(inputs["mask"].data) if mask > 0]
    starts = [position for position in targets if position - 1 not in targets]
    ends = [position + 1 for position in targets if position + 1 not in targets]
    for start, end in zip(starts, ends, strict=True):
        # The target at a position is the token after it.
        yield tokens[: start + 1], tokens[start + 1 : end + 1], logprobs[start:end]


def _float32(numbers: Sequence[float]) -> tuple[float, ...]:
    return struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers))
