"""The budgets of a run, ``max_tokens_total`` and ``max_wall_seconds``: what is left, and when a process must stop.

A spent budget stops the run before the next state that spends; a state that plays rollouts, where all that is answered
is kept, is stopped in the middle. A train step goes on to its end and through its saves: cut short it would be paid
again. What is in flight when a budget is reached is still spent, so it may be exceeded by that much.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.backends.usage import UsageLine
from orchestrator.config import Config
from orchestrator.errors import BudgetReachedError
from orchestrator.names import State
from orchestrator.reporting.spending import Spending, Spent, spent_by

PLAYING = frozenset({State.MAYBE_EVALUATE, State.ROLLOUT})
SPENDING = PLAYING | {State.TRAIN_STEP}


@dataclass(frozen=True, slots=True)
class Left:
    """What was spent of each budget."""

    max_tokens_total: int | None
    max_wall_seconds: float | None
    spent: Spent
    wall_seconds: float

    def reached(self) -> str | None:
        """Which budget is spent, and how to go on; None: none is."""
        if self.max_tokens_total is not None and self.spent.tokens >= self.max_tokens_total:
            found = f"max_tokens_total={self.max_tokens_total}"
            spent = f"the run has spent {self.spent.tokens} tokens ({self.spent.words()})"
        elif self.max_wall_seconds is not None and self.wall_seconds >= self.max_wall_seconds:
            found = f"max_wall_seconds={self.max_wall_seconds:g}"
            spent = f"the run's processes were at work for {self.wall_seconds:.1f} s"
        else:
            return None
        return f"{found} is reached: {spent}. Nothing is lost: run the same command again with more of it, or with none"

    def lines(self) -> list[str]:
        """What is left of each budget that there is, a line each."""
        lines = []
        if self.max_tokens_total is not None:
            left = max(0, self.max_tokens_total - self.spent.tokens)
            lines.append(f"budget: {left:,} of max_tokens_total={self.max_tokens_total:,} left")
        if self.max_wall_seconds is not None:
            seconds = max(0.0, self.max_wall_seconds - self.wall_seconds)
            lines.append(f"budget: {seconds:,.1f} s of max_wall_seconds={self.max_wall_seconds:g} left")
        return lines


def require_budget(config: Config, spending: Spending) -> None:
    """Refuses to take up a run that may spend nothing more.

    Raises:
        BudgetReachedError: a budget is spent.
    """
    left = Left(config.max_tokens_total, config.max_wall_seconds, spending.total, spending.wall_seconds)
    if (reached := left.reached()) is not None:
        raise BudgetReachedError(f"{config.log_path}: {reached}")


class Budget:
    """The budgets while one process spends them."""

    def __init__(
        self,
        config: Config,
        before: Spending,
        *,
        on_reached: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``before`` is what earlier processes spent; this one's time counts from now, in seconds of ``clock``.

        ``on_reached`` is called, on any thread and perhaps often, when a budget is spent while rollouts are played.
        """
        self._config = config
        self._before = before
        self._on_reached = on_reached
        self._clock = clock
        self._began = clock()
        self._spent = before.total
        self._playing = False
        self._reached: str | None = None
        self._guard = threading.Lock()

    @property
    def left(self) -> Left:
        """What was spent by now."""
        wall_seconds = self._before.wall_seconds + self._clock() - self._began
        return Left(self._config.max_tokens_total, self._config.max_wall_seconds, self._spent, wall_seconds)

    @property
    def seconds_left(self) -> float | None:
        """Until ``max_wall_seconds`` is reached; None: it never is."""
        left = self.left
        return None if left.max_wall_seconds is None else max(0.0, left.max_wall_seconds - left.wall_seconds)

    def spend(self, line: UsageLine) -> None:
        """Takes a line of the usage file, on any thread."""
        with self._guard:
            self._spent += spent_by(line)
        self.look()

    def look(self) -> None:
        """Calls ``on_reached`` where a budget is spent and rollouts are being played."""
        if self._playing and self._look() is not None:
            self._on_reached()

    def close(self) -> None:
        """Replies that come from now on end nothing."""
        self._playing = False

    def enter(self, state: State) -> None:
        """Hears that ``state`` is about to be entered.

        Raises:
            BudgetReachedError: it would spend, and a budget is spent.
        """
        self._playing = state in PLAYING
        if state in SPENDING:
            self.require()

    def require(self) -> None:
        """Does nothing while there is something left.

        Raises:
            BudgetReachedError: a budget is spent.
        """
        if (reached := self._look()) is not None:
            raise BudgetReachedError(reached)

    def _look(self) -> str | None:
        """Once reached it stays so: what stopped the run is told, even if a call is refused and paid back meanwhile."""
        self._reached = self._reached or self.left.reached()
        return self._reached
