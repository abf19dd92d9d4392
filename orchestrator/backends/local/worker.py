"""The one thread that carries out the embedded backend's requests and lets waiting samples share a micro-batch."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import torch

ResultT = TypeVar("ResultT")

GATHER_SECONDS = 0.002
"""How long a micro-batch that is not full waits for one more row: an agent's next call comes within about this time."""
STOP_SECONDS = 5.0
"""How long the end of the process waits for a request under way: longer than a decode step, never for ever."""


class StoppedError(RuntimeError):
    """The worker was closed before the request was carried out."""


@dataclass(frozen=True, slots=True)
class PendingFuture(Generic[ResultT]):
    """A request in the worker's queue, in the shape of the SDK's futures."""

    done: Future[ResultT]

    async def result_async(self, timeout: float | None = None) -> ResultT:
        """The reply; ``timeout`` in seconds, None waits for ever. Raises TimeoutError; the request stays ordered."""
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self.done)), timeout)


class Row(Protocol):
    """One sequence to sample."""

    @property
    def key(self) -> Hashable:
        """Rows of equal key may share a micro-batch."""
        ...

    @property
    def done(self) -> Future[Any]:
        """Where the sequence is delivered."""
        ...


RowT = TypeVar("RowT", bound=Row)


@dataclass(slots=True)
class _Queue(Generic[RowT]):
    """What waits; shared by the thread and its owner, so that the thread keeps no owner alive."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    requests: deque[tuple[Callable[[], Any], Future[Any]]] = field(default_factory=deque)
    rows: list[RowT] = field(default_factory=list)
    stopping: bool = False


class Worker(Generic[RowT]):
    """Carries out requests one at a time, in order; samples are micro-batched when no other request waits.

    Every tensor of the backend is touched by this one thread only, so nothing needs a lock and nothing blocks an event
    loop. The thread is a daemon that is asked to stop, and given a moment, when its owner goes or the process ends.
    """

    def __init__(self, sample: Callable[[list[RowT], Callable[[], bool]], list[Any]], *, rows: int, num_threads: int):
        """``sample`` turns up to ``rows`` rows of one key into their results; its second argument says to give up."""
        self._queue: _Queue[RowT] = _Queue()
        self._thread = threading.Thread(
            target=_work, args=(self._queue, sample, rows, num_threads), name="local-backend", daemon=True
        )
        self._thread.start()
        # A daemon thread that still runs torch while the interpreter is torn down aborts the process.
        self._close = weakref.finalize(self, _stop, self._queue, self._thread)

    def submit(self, request: Callable[[], ResultT]) -> Future[ResultT]:
        """Puts ``request`` behind the ones before it."""
        done: Future[ResultT] = Future()
        with self._queue.changed:
            if self._queue.stopping:
                raise StoppedError("the embedded backend is closed; make a new service")
            self._queue.requests.append((request, done))
            self._queue.changed.notify()
        return done

    async def run(self, request: Callable[[], ResultT]) -> ResultT:
        """Carries out ``request`` in its turn and gives its result."""
        return await PendingFuture(self.submit(request)).result_async()

    def submit_rows(self, rows: list[RowT]) -> None:
        """Adds rows to those that wait for a micro-batch."""
        with self._queue.changed:
            if self._queue.stopping:
                raise StoppedError("the embedded backend is closed; make a new service")
            self._queue.rows.extend(rows)
            self._queue.changed.notify()

    def close(self) -> None:
        """Refuses what waits, lets the request under way end, and stops the thread. May be called again."""
        self._close()


def _stop(queue: _Queue[Any], thread: threading.Thread) -> None:
    with queue.changed:
        queue.stopping = True
        queue.changed.notify()
    if thread is not threading.current_thread():
        thread.join(STOP_SECONDS)


def _work(
    queue: _Queue[RowT], sample: Callable[[list[RowT], Callable[[], bool]], list[Any]], max_rows: int, num_threads: int
) -> None:
    torch.set_num_threads(num_threads)
    while True:
        with queue.changed:
            queue.changed.wait_for(lambda: queue.requests or queue.rows or queue.stopping)
            if queue.stopping:
                break
            request = queue.requests.popleft() if queue.requests else None
            rows = [] if request else _gather(queue, max_rows)
        if request and request[1].set_running_or_notify_cancel():
            _carry_out(*request)
        rows = [row for row in rows if row.done.set_running_or_notify_cancel()]
        if rows:
            _sample_together(queue, sample, rows)
        request, rows = None, []  # they hold their clients, which must not live on only because nothing comes next
    for waiting in [done for _, done in queue.requests] + [row.done for row in queue.rows]:
        if waiting.set_running_or_notify_cancel():
            waiting.set_exception(StoppedError("the embedded backend was closed before the request was carried out"))


def _gather(queue: _Queue[RowT], max_rows: int) -> list[RowT]:
    """Takes the rows that share the oldest row's key, waiting while more keep coming. Called with the lock held."""
    waiting = 0
    while len(queue.rows) > waiting and sum(row.key == queue.rows[0].key for row in queue.rows) < max_rows:
        waiting = len(queue.rows)
        queue.changed.wait(GATHER_SECONDS)
    key = queue.rows[0].key
    taken = [row for row in queue.rows if row.key == key][:max_rows]
    chosen = {id(row) for row in taken}
    queue.rows = [row for row in queue.rows if id(row) not in chosen]
    return taken


def _sample_together(
    queue: _Queue[RowT], sample: Callable[[list[RowT], Callable[[], bool]], list[Any]], rows: list[RowT]
) -> None:
    """Delivers what ``sample`` gives; when it fails, row by row, so that only the culprit fails."""
    try:
        results = _sampled(queue, sample, rows)
    except BaseException as error:  # whatever it is, it belongs to whoever waits for the reply
        if len(rows) == 1 or queue.stopping:
            for row in rows:
                row.done.set_exception(error)
            return
    else:
        for row, result in zip(rows, results, strict=True):
            row.done.set_result(result)
        return
    for row in rows:
        _sample_together(queue, sample, [row])


def _sampled(
    queue: _Queue[RowT], sample: Callable[[list[RowT], Callable[[], bool]], list[Any]], rows: list[RowT]
) -> list[Any]:
    results = [] if queue.stopping else sample(rows, lambda: queue.stopping)
    if queue.stopping:  # they may have been cut short, and nobody may take that for a reply
        raise StoppedError("the embedded backend was closed while it sampled")
    return results


def _carry_out(request: Callable[[], Any], done: Future[Any]) -> None:
    try:
        result = request()
    except BaseException as error:  # as above
        done.set_exception(error)
    else:
        done.set_result(result)
