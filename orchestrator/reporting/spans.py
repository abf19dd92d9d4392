"""When each state of a batch, and each request in it, began and ended: tinker-cookbook's trace file and Gantt chart.

Both are for looking at. Nothing is rebuilt from them, so they are not synced: a kill costs the last second of the trace
and the chart of the batch under way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from tinker_cookbook.utils import trace
from tinker_cookbook.utils.misc_utils import iteration_dir

from orchestrator.config import Config
from orchestrator.disk import DISK, Disk
from orchestrator.journal.durable import LineFile
from orchestrator.names import CYCLE, State

log = structlog.get_logger(__name__)

TRACE_FILE = "trace_events.jsonl"
CHART_FILE = "timing_gantt.html"
FLUSH_SECONDS = 0.2
"""How often events go to the file; a process that ends waits for so long."""


class InBatch(Protocol):
    """What a state's body is given, as far as it matters here."""

    @property
    def batch(self) -> int:
        """The batch that the machine is in."""
        ...


ContextT = TypeVar("ContextT", bound=InBatch)
ResultT = TypeVar("ResultT")
Bodies = Mapping[State, Callable[[ContextT], Awaitable[ResultT]]]


class Spans:
    """The spans of one process."""

    def __init__(self, config: Config, log_path: Path) -> None:
        """Nothing is written before a body has run."""
        self._traces = config.enable_trace
        self._chart_every = config.span_chart_every
        self._log_path = log_path
        self._batch = trace.IterationWindow()

    def around(self, bodies: Bodies[ContextT, ResultT]) -> Bodies[ContextT, ResultT]:
        """``bodies``, each of them a span; the same ones where neither a trace nor a chart is asked for."""
        if not (self._traces or self._chart_every):
            return bodies
        return {state: self._spanned(state, body) for state, body in bodies.items()}

    def _spanned(
        self, state: State, body: Callable[[ContextT], Awaitable[ResultT]]
    ) -> Callable[[ContextT], Awaitable[ResultT]]:
        async def spanned(context: ContextT) -> ResultT:
            task = asyncio.current_task()
            if task is not None:
                task.set_name("states")  # each body runs in a task of its own, and a trace has a track for each name
            if state is CYCLE[0]:
                self._batch = trace.IterationWindow()
            with trace.trace_iteration(context.batch) as window:
                async with trace.scope_span(state.value):
                    result = await body(context)
            self._batch.merge_spans(window.spans)
            if state is CYCLE[-1] and self._chart_every and context.batch % self._chart_every == 0:
                self._write_chart(context.batch)
            return result

        return spanned

    def _write_chart(self, batch: int) -> None:
        folder = iteration_dir(self._log_path, batch)
        assert folder is not None  # noqa: S101 - only without a log_path
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            unfinished = folder / f"{CHART_FILE}.unfinished"
            trace.save_gantt_chart_html(self._batch, batch, unfinished)
            unfinished.replace(folder / CHART_FILE)
        except OSError as error:
            log.warning("the chart of a batch could not be written", chart_batch=batch, error=str(error))


@contextmanager
def open_spans(config: Config, log_path: Path, *, disk: Disk = DISK) -> Iterator[Spans]:
    """The spans of this process, while the context is entered; its trace is added to those of the ones before it.

    Raises:
        JournalWriteError, SideFileDamagedError: the trace file cannot be opened.
    """
    if not config.enable_trace:
        yield Spans(config, log_path)
        return
    LineFile(log_path / TRACE_FILE, disk=disk).close()  # cuts off the line that a killed process was writing
    trace.trace_init(FLUSH_SECONDS, str(log_path / TRACE_FILE))
    try:
        yield Spans(config, log_path)
    finally:
        trace.trace_shutdown()
