"""The rewards that one attempt was given, in their order, and the one that counts: the last.

That is Agent-lightning's own rule. Its runners emit the number that an agent returns as one more reward, so the
returned number, where there is one, is the last. Rewards on the way are kept with the rollout and decide nothing.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from threading import Lock
from typing import Any, TypeAlias

from orchestrator.rollouts.compat import (
    SpanCoreFields,
    find_final_reward,
    get_reward_value,
    get_rewards_from_span,
)

Reward: TypeAlias = dict[str, float]
"""One reward by dimension; the first dimension counts, and of a single number is called ``primary``."""
PRIMARY = "primary"
MAX_REWARD = 1e30
"""Larger ones, squared or summed over a group, overflow the single precision in which advantages are computed."""


class Rewards:
    """One attempt's own sink of rewards; threads of the agent may share it."""

    def __init__(self) -> None:
        self._given: list[Reward] = []
        self._closed = False
        self._lock = Lock()

    def add(self, span: SpanCoreFields) -> None:
        """Takes the reward that ``span`` emits, if it emits one."""
        reward = reward_of_span(span)
        with self._lock:
            if reward is not None and not self._closed:
                self._given.append(reward)

    def close(self) -> tuple[Reward, ...]:
        """All rewards so far; what is emitted from now on is ignored, for the attempt is over."""
        with self._lock:
            self._closed = True
            return tuple(self._given)


def reward_of_span(span: SpanCoreFields) -> Reward | None:
    """The reward that ``span`` emits, by dimension; None where it emits none."""
    dimensions = {dimension.name: dimension.value for dimension in get_rewards_from_span(span)}
    if dimensions:
        return dimensions
    value = get_reward_value(span)  # as older versions of Agent-lightning and AgentOps wrote it
    return None if value is None else {PRIMARY: value}


def number_of(returned: Any) -> tuple[float | None, str | None]:
    """What an agent returned, as a number, and why it is none; None and None where it returned None.

    True and False are 1.0 and 0.0, as in ``emit_reward``. Scalars of NumPy and PyTorch are their number. A list of
    spans, which Agent-lightning takes too, is its last reward. Not finite numbers are returned as they are. What the
    methods of a value of the agent's own type raise is raised.
    """
    if isinstance(returned, list) and all(hasattr(entry, "attributes") for entry in returned):
        returned = find_final_reward(returned)
    item: Callable[[], Any] | None = getattr(returned, "item", None)
    if item is not None and getattr(returned, "shape", None) == ():
        returned = item()
    if returned is None:
        return None, None
    if not isinstance(returned, Real):
        return None, f"the agent returned a {type(returned).__name__}; expected a number, or None after emit_reward"
    try:
        return float(returned), None
    except OverflowError:
        huge: Any = returned
        return (math.inf if huge > 0 else -math.inf), None


def why_no_reward(given: tuple[Reward, ...]) -> str | None:
    """Why the last of ``given`` cannot be the rollout's reward; None where it can."""
    if not given:
        return "no reward: return a number from the agent, or call agentlightning.emit_reward before it returns"
    reward = primary(given[-1])
    if not math.isfinite(reward):
        return f"the reward is {reward}; expected a finite number"
    if abs(reward) > MAX_REWARD:
        return f"the reward is {reward}; expected one between {-MAX_REWARD:g} and {MAX_REWARD:g}"
    return None


def primary(reward: Reward) -> float:
    """The dimension that counts."""
    return next(iter(reward.values()))


def storable(given: Iterable[Reward]) -> tuple[Mapping[str, float | None], ...]:
    """``given`` as JSON values: null stands for what is not finite."""
    return tuple({name: value if math.isfinite(value) else None for name, value in reward.items()} for reward in given)
