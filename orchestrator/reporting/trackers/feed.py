"""Brings the trackers that the configuration asks for to equal the journal, and feeds them the rows that follow.

Who does what:
- ``requirements`` refuses, before anything is spent, a tracker that could not work.
- ``event_files`` (TensorBoard), ``trackio_run`` and ``wandb_run`` hold one tracker each: given the journal's rows they
  make their view equal them, then take row after row. A row that they have already is not added again.
- ``TrackerFeed`` runs one of them in a thread of its own; ``Trackers`` are all of them.

A kill loses what a tracker had not taken, or the journal had not recorded; either way the next process starts from the
journal's rows, and the row of a batch that has to be logged again is the same row. So no row is lost or doubled.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

import structlog

from orchestrator.config import Config, flatten
from orchestrator.journal.recovery import RunState
from orchestrator.redaction import Redactor
from orchestrator.reporting.metrics import journaled_rows
from orchestrator.reporting.trackers.event_files import EventFiles
from orchestrator.reporting.trackers.trackio_run import TrackioRun
from orchestrator.reporting.trackers.wandb_run import WandbRun

log = structlog.get_logger(__name__)

FLUSH_SECONDS = 10.0
"""How long the end of a process waits for its trackers, all together."""

Row = Mapping[str, Any]
"""``step``, the batch, and finite numbers or texts under ``area/name`` keys."""


class Tracker(Protocol):
    """One tracker, opened with the rows that it has to hold. Everything is called on one thread."""

    def write(self, row: Row) -> None:
        """Takes the row of the next batch."""

    def close(self) -> None:
        """Hands over what it holds back."""


class TrackerFeed:
    """A tracker at work in a thread of its own, which neither slows the run nor holds its exit nor ends it."""

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[Sequence[Row]], Tracker],
        rows: Sequence[Row],
        *,
        observer: Callable[[str], None] = lambda _point: None,
    ) -> None:
        """Starts at once with ``rows``. ``observer`` hears of ``tracker:before:NAME`` and ``tracker:after:NAME``."""
        self.name = name
        self._open_tracker = open_tracker
        self._rows = rows
        self._observer = observer
        self._queue: SimpleQueue[Row | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def write(self, row: Row) -> None:
        """Leaves the row to the thread."""
        self._queue.put(row)

    def finish(self) -> None:
        """No more rows come."""
        self._queue.put(None)

    def join(self, timeout_seconds: float) -> bool:
        """Whether it is done, with or without success, within the time."""
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            tracker = self._open_tracker(self._rows)
            while (row := self._queue.get()) is not None:
                self._observer(f"tracker:before:{self.name}")
                tracker.write(row)
                self._observer(f"tracker:after:{self.name}")
            tracker.close()
        except Exception as error:  # whatever a tracker or its network raises, the run is worth more
            log.warning(
                "a tracker failed and gets no more rows in this process; the next one sends it all that are missing",
                tracker=self.name,
                error=f"{type(error).__name__}: {error}",
            )


class Trackers:
    """All trackers of a run."""

    def __init__(self, feeds: Sequence[TrackerFeed], redact: Redactor) -> None:
        """``redact`` takes the secrets out of texts."""
        self._feeds = feeds
        self._redact = redact

    def write(self, row: Row) -> None:
        """Leaves the row of a batch to every tracker."""
        for feed in self._feeds:
            feed.write(sendable(row, self._redact))

    async def close(self, timeout_seconds: float = FLUSH_SECONDS) -> None:
        """Waits until they have taken all rows, ``timeout_seconds`` at most, and says which have not."""
        for feed in self._feeds:
            feed.finish()
        await asyncio.to_thread(self._join, time.monotonic() + timeout_seconds)

    def _join(self, deadline: float) -> None:
        for feed in self._feeds:
            if not feed.join(max(0.0, deadline - time.monotonic())):
                log.warning("a tracker has not taken all rows in time; the next process sends them", tracker=feed.name)


def sendable(row: Row, redact: Redactor) -> dict[str, Any]:
    """What of a row may leave: finite numbers, and texts without secrets."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and math.isfinite(value)}
    return numbers | {name: redact(value) for name, value in row.items() if isinstance(value, str)}


def open_trackers(
    config: Config,
    log_path: Path,
    run: RunState,
    *,
    redact: Redactor,
    observer: Callable[[str], None] = lambda _point: None,
) -> Trackers:
    """Starts the trackers that ``config`` asks for, each with the rows that the journal says are complete."""
    run_id = tracker_run_id(run)
    shown = {name: redact(value) if isinstance(value, str) else value for name, value in flatten(config).items()}
    asked: dict[str, Callable[[Sequence[Row]], Tracker]] = {}
    if config.wandb_project is not None:
        asked["wandb"] = partial(
            WandbRun, config.wandb_project, config.wandb_name or log_path.name, run_id, log_path, shown
        )
    if config.trackio_project is not None:
        asked["trackio"] = partial(TrackioRun, config.trackio_project, run_id, shown)
    if config.tensorboard:
        asked["tensorboard"] = partial(EventFiles, log_path)
    rows = [sendable(row, redact) for row in journaled_rows(run)]
    feeds = [TrackerFeed(name, open_tracker, rows, observer=observer) for name, open_tracker in asked.items()]
    return Trackers(feeds, redact)


def tracker_run_id(run: RunState) -> str:
    """The run's name in trackers, the same in every process, so that a resumed run continues one curve.

    Each time that a finished run is given more batches it gets a new one: its final evaluation stands at the step of a
    batch that is now to be trained, and trackers cannot take a row back.
    """
    return f"{run.run_id}-{run.extensions}" if run.extensions else run.run_id
