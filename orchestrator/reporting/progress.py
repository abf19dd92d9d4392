"""What a person watches while a run goes on: a live display on a terminal, elsewhere one plain line a batch."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from orchestrator.names import counted

QUIET_SECONDS = 15.0
"""How long nothing is said while a state goes on, where there is no live display."""
RECENT_BATCHES = 10
"""How many batches' durations the estimate of the remaining time is the mean of."""
REWARD = "rollout/reward_mean"
UNSUCCESSFUL = ("rollout/failed", "rollout/timed_out", "rollout/empty", "rollout/invalid")


class Progress:
    """The display of one run, entered as a context manager. Batches are numbered from 0; ``3/40`` counts finished ones.

    Give it the console that the logs go to, so that lines appear above the display. Values may be set from any thread.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        num_batches: int,
        batches_done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``console`` is standard error unless given; ``batches_done`` is what a resumed run has behind it.

        ``clock`` gives seconds.
        """
        self.console = console or Console(stderr=True)
        self._clock = clock
        self._num_batches = num_batches
        self._batches_done = batches_done
        self._recent_seconds: deque[float] = deque(maxlen=RECENT_BATCHES)
        self._state = "starting"
        self._batch = batches_done
        self._batch_since = clock()
        self._done = self._failed = self._total = 0
        self._tokens_since: tuple[float, int] | None = None
        self._tokens_per_second: float | None = None
        self._reward: float | None = None
        moves = self.console.is_terminal and not self.console.is_dumb_terminal
        self._state_since = self._told_at = clock()
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, name="progress", daemon=True)
        self._live = Live(console=self.console, get_renderable=self._display, transient=True) if moves else None

    def __enter__(self) -> Self:
        """Shows the live display where the console is a terminal; elsewhere a long state is told of now and then."""
        if self._live is not None:
            self._live.start()
        else:
            self._speaker.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the display away, whatever happened; the lines stay."""
        if self._live is not None:
            self._live.stop()
        self._over.set()
        if self._speaker.ident is not None:
            self._speaker.join()

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the last batch is finished; None before one has been timed."""
        if not self._recent_seconds:
            return None
        return fmean(self._recent_seconds) * (self._num_batches - self._batches_done)

    def enter(self, state: str, batch: int) -> None:
        """The machine is in ``state`` of ``batch``; counts of rollouts begin anew."""
        if batch != self._batch:
            self._batch_since = self._clock()
        self._state, self._batch = state, batch
        self._state_since = self._clock()
        self._done = self._failed = self._total = 0
        self._tokens_since = self._tokens_per_second = None

    def rollouts(self, done: int, failed: int, total: int, sampled_tokens: int) -> None:
        """``done`` of ``total`` rollouts of this state are finished, ``failed`` of those without success.

        ``sampled_tokens`` counts from the state's begin. The rate is taken from the first report on: what a resumed
        state already had is not speed.
        """
        self._done, self._failed, self._total = done, failed, total
        now = self._clock()
        if self._tokens_since is None:
            self._tokens_since = now, sampled_tokens
        elif now > self._tokens_since[0]:
            self._tokens_per_second = (sampled_tokens - self._tokens_since[1]) / (now - self._tokens_since[0])

    def batch_finished(
        self, batch: int, metrics: Mapping[str, object], seconds: float | None = None, *, skipped: str | None = None
    ) -> None:
        """Prints the batch's line: reward, evaluation (``test/`` metrics), seconds, time remaining.

        ``seconds`` is what the batch took; None: the time since this process entered it. ``skipped`` is why no
        optimizer step was taken. Batch ``num_batches`` is the one that only evaluates the final weights.
        """
        if seconds is None:
            seconds = self._clock() - self._batch_since
        if batch < self._num_batches:
            self._batches_done = batch + 1
            self._recent_seconds.append(seconds)
            parts = [f"batch {batch}", f"{self._batches_done}/{self._num_batches} done"]
        else:
            parts = ["final evaluation"]
        reward = metrics.get(REWARD)
        if isinstance(reward, int | float):
            self._reward = float(reward)
        if batch < self._num_batches:
            parts.append("no reward" if reward is None else f"reward {_number(reward)}")
        unsuccessful = sum(int(value) for name in UNSUCCESSFUL if isinstance(value := metrics.get(name), int | float))
        if unsuccessful:
            parts.append(f"{counted(unsuccessful, 'rollout')} did not succeed")
        parts += [
            f"{name} {_number(value)}"
            for name, value in metrics.items()
            if (name.startswith("test/") and name.endswith("/reward_mean")) or name == "test/succeeded"
        ]
        parts.append(duration(seconds))
        if self.eta_seconds:
            parts.append(f"ETA {duration(self.eta_seconds)}")
        if skipped is not None:
            parts.append(f"no optimizer step: {skipped}")
        self.note("  ".join(parts))

    def note(self, *lines: str) -> None:
        """Prints lines of their own, above the live display where there is one."""
        self._told_at = self._clock()
        for line in lines:
            self.console.print(Text(line), soft_wrap=True)

    def tell_if_quiet(self) -> None:
        """Prints how far the state is, unless something was printed, or the state entered, a moment ago."""
        now = self._clock()
        if now - max(self._told_at, self._state_since) < QUIET_SECONDS:
            return
        parts = [f"batch {self._batch}", self._state]
        if self._total:
            parts.append(f"{self._done}/{self._total} rollouts")
        if self._failed:
            parts.append(f"{self._failed} failed")
        if self._tokens_per_second is not None:
            parts.append(f"{self._tokens_per_second:,.0f} tokens/s")
        self.note("  ".join([*parts, f"{duration(now - self._state_since)} so far"]))

    def _speak(self) -> None:
        while not self._over.wait(QUIET_SECONDS / 4):
            self.tell_if_quiet()

    def _display(self) -> Group:
        """Two lines that fit 80 columns: where the run is, and how its rollouts go."""
        where: list[RenderableType] = [
            Text(self._state, style="bold cyan"),
            Text(f"batch {self._batch}"),
            ProgressBar(total=max(self._num_batches, 1), completed=self._batches_done, width=16),
            Text(f"{self._batches_done}/{self._num_batches}"),
        ]
        if self.eta_seconds:
            where.append(Text(f"ETA {duration(self.eta_seconds)}", style="dim"))
        rollouts: list[RenderableType] = []
        if self._total:
            rollouts.append(Text(f"rollouts {self._done}/{self._total}"))
        if self._failed:
            rollouts.append(Text(f"{self._failed} failed", style="red"))
        if self._tokens_per_second is not None:
            rollouts.append(Text(f"{self._tokens_per_second:,.0f} tokens/s"))
        if self._reward is not None:
            rollouts.append(Text(f"last reward {_number(self._reward)}", style="green"))
        return Group(*[_row(cells) for cells in (where, rollouts) if cells])


def _row(cells: Sequence[RenderableType]) -> Table:
    row = Table.grid(*[Column(no_wrap=True) for _ in cells], padding=(0, 2))
    row.add_row(*cells)
    return row


def duration(seconds: float) -> str:
    """``4.2 s``, ``3 min 20 s`` or ``2 h 05 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _number(value: object) -> str:
    """A metric in few characters: whole numbers whole, others with three decimals."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.3f}"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
