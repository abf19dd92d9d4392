"""How one attempt at a rollout ended, and which outcome and reward that gives."""

import math
import re
import sysconfig
import traceback
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from orchestrator.redaction import Redactor
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, Turn

MAX_MESSAGE_CHARACTERS = 500
MAX_FRAMES = 8
NOT_THE_AGENTS = (sysconfig.get_path("stdlib"), str(Path(__file__).parent), "<")
"""How the file names of frames begin that are the standard library's, the runners' or no file's."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt at a rollout ended."""

    outcome: Outcome
    reward: float | None
    """None where there is none, or where it is not finite."""
    turns: tuple[Turn, ...]
    error: str | None
    """None when succeeded. Where the agent raised: ``<type> at <file>:<line>: <message> ...``, as of ``report_of``."""


class Runner(Protocol):
    """Where attempts are run: in this process, in others, or on other machines."""

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt to its end or its deadline; cancelling it abandons the attempt and its turns."""
        ...


@dataclass(slots=True)
class Rewards:
    """One attempt's own sink of emitted rewards."""

    last: float | None = None
    closed: bool = False
    """Whether the attempt is over: what is emitted then is ignored."""

    def add(self, reward: float) -> None:
        """Takes one emitted reward."""
        if not self.closed:
            self.last = reward


@dataclass(frozen=True, slots=True)
class Ended:
    """What the agent returned, or raised. An exception travels as a value: futures cannot hold a StopIteration."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What the agent's end comes to, its turns aside: JSON values, which travel between processes as they are."""

    reward: float | None
    """None where there is none, or where it is not finite."""
    invalid: str | None
    """Why there is no finite reward, where the agent returned."""
    error: str | None
    """Where the agent raised: what it raised, as of ``report_of``."""


def report_of(ended: Ended, rewards: Rewards, redact: Redactor | None = None) -> Report:
    """What an agent that ended as ``ended`` has to say; ``redact`` takes the secrets out of its error."""
    if ended.error is not None:
        return Report(None, None, _describe(ended.error, redact or Redactor()))
    return Report(*_reward(ended.value, rewards), None)


def judge(report: Report | None, turns: tuple[Turn, ...], timeout_seconds: float) -> AttemptResult:
    """The outcome of an attempt of which the agent reported so much, or nothing within ``timeout_seconds`` (None)."""
    if report is None:
        problem = f"the agent did not return within {timeout_seconds:g} s (rollout_timeout_seconds)"
        return AttemptResult(Outcome.TIMED_OUT, None, turns, problem)
    if report.error is not None:
        return AttemptResult(Outcome.FAILED, None, turns, report.error)
    invalid = report.invalid
    if not turns:
        problem = (
            "the agent returned without having called the model. Does its client use base_url=llm.endpoint and "
            "api_key=llm.api_key, rather than an address and a key of its own?"
        )
        return AttemptResult(Outcome.EMPTY, report.reward, turns, problem)
    num_invalid = sum(not turn.valid for turn in turns)
    if num_invalid:
        invalid = f"{num_invalid} of {len(turns)} turns lack token ids or logprobs, or have unequal numbers of them"
    return AttemptResult(Outcome.INVALID if invalid else Outcome.SUCCEEDED, report.reward, turns, invalid)


def _reward(value: Any, rewards: Rewards) -> tuple[float | None, str | None]:
    """The reward and, where there is no finite one, why: the returned number wins over the last emitted one.

    True and False count as 1.0 and 0.0, as they do in ``emit_reward``.
    """
    if value is None:
        value = rewards.last
    if value is None:
        return None, "no reward: return a number from the agent, or call agentlightning.emit_reward before it returns"
    if not isinstance(value, Real):
        return None, f"the agent returned a {type(value).__name__}; expected a number, or None after emit_reward"
    reward = float(value)
    return (reward, None) if math.isfinite(reward) else (None, f"the reward is {reward}; expected a finite number")


def _describe(error: BaseException, redact: Redactor) -> str:
    """Type, the agent's line, shortened message and innermost frames of the error, and of its cause.

    Never locals or secrets, and none of the ids and addresses that differ between two runs of the same rollout.
    """
    message = redact(str(error))
    message = re.sub(r"https?://[^\s'\"]*/rollout/[^/\s]+/attempt/[^/\s'\"]+", "<llm.endpoint>", message)
    message = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", message)
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[:MAX_MESSAGE_CHARACTERS]}..."
    frames = traceback.extract_tb(error.__traceback__)
    where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames[-MAX_FRAMES:])
    described = f"{type(error).__name__}{_agents_line(frames)}: {message} ({where})"
    return described if error.__cause__ is None else f"{described}, caused by {_describe(error.__cause__, redact)}"


def _agents_line(frames: traceback.StackSummary) -> str:
    """Where in the agent's own code it happened, as `` at <file>:<line>``; empty where none of it took part."""
    for frame in reversed(frames):
        installed = {"site-packages", "dist-packages"} & set(Path(frame.filename).parts)
        if not installed and not frame.filename.startswith(NOT_THE_AGENTS):
            return f" at {Path(frame.filename).name}:{frame.lineno}"
    return ""
