"""The states of the machine, the table of legal transitions between them, and the spelling of batch numbers."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Where the machine stands; the value is what the journal, the logs and the metrics say."""

    PUBLISH_MODEL = "PublishModel"
    """The current sampler is served under this batch's policy version."""
    MAYBE_EVALUATE = "MaybeEvaluate"
    """If an evaluation is due, the published policy is evaluated."""
    ROLLOUT = "Rollout"
    """The agents play this batch's groups against the published policy."""
    TRAIN_STEP = "TrainStep"
    """The batch's datums are stored and then trained on."""
    SWAP_SAMPLER = "SwapSampler"
    """The new weights are saved as the next policy's sampler, and as a checkpoint where one is due."""
    LOG = "Log"
    """The batch's metric row is written."""
    FINISHED = "Finished"
    """No batch remains and the final weights are evaluated."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal move of the machine."""

    source: State
    dest: State
    when: str
    """The condition in words: ``always``, ``batches remain``, ``none remain`` or ``always, batch + 1``."""


TRANSITIONS = (
    Transition(State.PUBLISH_MODEL, State.MAYBE_EVALUATE, "always"),
    Transition(State.MAYBE_EVALUATE, State.ROLLOUT, "batches remain"),
    Transition(State.MAYBE_EVALUATE, State.FINISHED, "none remain"),
    Transition(State.ROLLOUT, State.TRAIN_STEP, "always"),
    Transition(State.TRAIN_STEP, State.SWAP_SAMPLER, "always"),
    Transition(State.SWAP_SAMPLER, State.LOG, "always"),
    Transition(State.LOG, State.PUBLISH_MODEL, "always, batch + 1"),
)

INITIAL_STATE = State.PUBLISH_MODEL
CYCLE = tuple(state for state in State if state is not State.FINISHED)
"""The six states of one batch, in order."""


def next_state(source: State, *, batch: int, num_batches: int) -> State:
    """The one state that follows ``source`` in batch ``batch`` (0-based) of ``num_batches``.

    Raises:
        ValueError: ``source`` is terminal.
    """
    if source is State.MAYBE_EVALUATE and batch >= num_batches:
        return State.FINISHED
    for transition in TRANSITIONS:
        if transition.source is source and transition.dest is not State.FINISHED:
            return transition.dest
    raise ValueError(f"{source} is terminal: no state follows it")


def counted(number: int, noun: str) -> str:
    """A count in words, ``1 batch`` or ``1,024 batches``; the noun is given in the singular."""
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number:,} {noun}{ending}"


def batch_name(batch: int) -> str:
    """How a batch number is spelled in file and checkpoint names, e.g. ``000004``."""
    return f"{batch:06d}"
