"""How one attempt at a rollout ended, and which outcome and reward that gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.rollouts.failures import Failure, describe
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, Turn
from orchestrator.rollouts.rewards import PRIMARY, Rewards, number_of, primary, storable, why_no_reward


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt at a rollout ended."""

    outcome: Outcome
    reward: float | None
    """None where there is none, or where it is not finite."""
    turns: tuple[Turn, ...]
    error: str | None
    """None when succeeded. Where the agent raised: ``<type> at <file>:<line>: <message>``."""
    rewards: tuple[Mapping[str, float | None], ...] = ()
    """Every reward given, by dimension; the last one's first dimension is ``reward``. None: not finite."""
    traceback: str | None = None
    """Where the agent raised, its own frames, as of ``failures.describe``."""


class Runner(Protocol):
    """Where attempts are run: in this process, in others, or on other machines."""

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt to its end or its deadline; cancelling it abandons the attempt and its turns."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """What the agent returned, or raised. An exception travels in words: futures cannot hold a StopIteration."""

    value: float | None = None
    """The number it returned; None: it returned none."""
    problem: str | None = None
    """Why what it returned is no number."""
    failure: Failure | None = None


def returned(value: Any) -> Ended:
    """The end of an agent that returned ``value``; raises what the value's own methods raise."""
    number, problem = number_of(value)
    return Ended(number, problem)


def raised(error: BaseException) -> Ended:
    """The end of an agent that raised; to be called where the agent runs, see ``failures.describe``."""
    return Ended(failure=describe(error))


@dataclass(frozen=True, slots=True)
class Report:
    """What the agent's end comes to, its turns aside: JSON values, which travel between processes as they are."""

    reward: float | None
    """None where there is none, or where it is not finite."""
    invalid: str | None
    """Why there is no finite reward, where the agent returned."""
    error: str | None
    """Where the agent raised: ``<type> at <file>:<line>: <message>``."""
    rewards: tuple[Mapping[str, float | None], ...] = ()
    """Every reward given, as of ``AttemptResult``."""
    traceback: str | None = None


def report_of(ended: Ended, rewards: Rewards) -> Report:
    """What an agent that ended as ``ended`` has to say; what it emits from now on is ignored.

    The reward is the last one given: the returned number, else what was emitted last. Where that one is missing, not
    finite or no number the attempt is invalid; no earlier one takes its place, and it never counts as 0.
    """
    given = rewards.close()
    if ended.failure is not None:
        return Report(None, None, ended.failure.error, storable(given), ended.failure.traceback)
    if ended.value is not None:
        given = (*given, {PRIMARY: ended.value})
    invalid = ended.problem or why_no_reward(given)
    return Report(None if invalid else primary(given[-1]), invalid, None, storable(given))


def judge(report: Report | None, turns: tuple[Turn, ...], timeout_seconds: float) -> AttemptResult:
    """The outcome of an attempt of which the agent reported so much, or nothing within ``timeout_seconds`` (None)."""
    if report is None:
        problem = f"the agent did not return within {timeout_seconds:g} s (rollout_timeout_seconds)"
        return AttemptResult(Outcome.TIMED_OUT, None, turns, problem)
    if report.error is not None:
        return AttemptResult(Outcome.FAILED, None, turns, report.error, report.rewards, report.traceback)
    if not turns:
        problem = (
            "the agent returned without having called the model. Does its client use base_url=llm.endpoint and "
            "api_key=llm.api_key, rather than an address and a key of its own?"
        )
        return AttemptResult(Outcome.EMPTY, report.reward, turns, problem, report.rewards)
    invalid = report.invalid
    num_invalid = sum(not turn.valid for turn in turns)
    if num_invalid:
        invalid = f"{num_invalid} of {len(turns)} turns lack token ids or logprobs, or have unequal numbers of them"
    outcome = Outcome.INVALID if invalid else Outcome.SUCCEEDED
    return AttemptResult(outcome, report.reward, turns, invalid, report.rewards)
