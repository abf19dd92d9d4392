"""Daemon threads for agents: nobody waits for them, and those that outlive their attempt are counted and bounded."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import structlog

from orchestrator.errors import StateFailedError

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_LEFT_BEHIND = 512
"""Threads that outlive their attempts before the run stops: each holds some 100 kB, and whatever the agent held."""
LAST_WAIT_SECONDS = 5.0
"""Given to so many to end before the run stops: those of agents that were all timed out together end together."""
FIRST_WARNING = 8
"""So many are warned of, then twice as many, and so on."""

_of_attempt: ContextVar["list[Future[Any]] | None"] = ContextVar("threads_of_attempt", default=None)


class LeftBehind:
    """The threads that still run although their attempt is over: Python cannot end a thread from outside."""

    def __init__(self) -> None:
        self._threads: list[Future[Any]] = []
        self._warn_at = FIRST_WARNING

    def add(self, threads: "list[Future[Any]]") -> None:
        """Counts those of ``threads``, as of ``in_daemon_thread``, that still run; warns at each doubling."""
        self._threads = [thread for thread in [*self._threads, *threads] if not thread.done()]
        if len(self._threads) >= self._warn_at:
            self._warn_at = 2 * len(self._threads)
            log.warning(
                f"{len(self._threads)} threads of agents whose attempt is over still run, and cannot be ended; give "
                f"their blocking calls timeouts below rollout_timeout_seconds. At {MAX_LEFT_BEHIND} the run stops"
            )

    async def check(self) -> None:
        """Before another attempt is begun.

        Raises:
            StateFailedError: there are ``MAX_LEFT_BEHIND``.
        """
        if len(self._threads) < MAX_LEFT_BEHIND:
            return
        await asyncio.to_thread(wait, list(self._threads), LAST_WAIT_SECONDS)
        self._threads = [thread for thread in self._threads if not thread.done()]
        if len(self._threads) >= MAX_LEFT_BEHIND:
            raise StateFailedError(
                f"{len(self._threads)} threads of agents whose attempt is over still run, e.g. of rollouts that were "
                "timed out; Python cannot end them, and more would take this process down. Give the agent's blocking "
                "calls timeouts below rollout_timeout_seconds. Every finished rollout is stored: the same command "
                "goes on in a new process, without them"
            )


class DaemonThreads(ThreadPoolExecutor):
    """Where ``asyncio.to_thread`` of an agent runs: a thread a call, for which nobody waits.

    The threads of a pool are few, so calls that hang would hold up every agent's; and the interpreter joins them when
    it exits, so one that hangs would keep the process alive.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Starts the call at once."""
        return in_daemon_thread(lambda: fn(*args, **kwargs), name="agent call")


def claim_threads(threads: "list[Future[Any]]") -> None:
    """Has ``threads`` hold every daemon thread that is started from this context, or a task begun in it, from now on.

    For contexts that one attempt has to itself: there is no way back.
    """
    _of_attempt.set(threads)


def in_daemon_thread(run: Callable[[], T], *, name: str) -> "Future[T]":
    """Runs ``run`` in a thread of its own. Not a pool's thread: the interpreter waits for those when it exits.

    An event loop that ``run`` leaves as that thread's is closed.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def deliver() -> None:
        try:
            future.set_result(context.run(_run_and_close_loop, run))
        except BaseException as error:  # it belongs to whoever waits for the result
            future.set_exception(error)

    owner = _of_attempt.get()
    if owner is not None:
        # An agent may make thousands of calls; of those that are over nothing is kept.
        owner[:] = [*(other for other in owner if not other.done()), future]
    Thread(target=deliver, name=name, daemon=True).start()
    return future


def _run_and_close_loop(run: Callable[[], T]) -> T:
    try:
        return run()
    finally:
        # Its three descriptors would stay open until the garbage collector finds it, hundreds of rollouts later.
        with contextlib.suppress(RuntimeError):  # there is none, or another thread runs it
            asyncio.get_event_loop().close()
