"""SIGINT and SIGTERM as a request to stop: the first sets an event, a second SIGINT ends the process at once."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog

from orchestrator.errors import EXIT_INTERRUPTED, StopRequested

WorkT = TypeVar("WorkT")

log = structlog.get_logger(__name__)


class StopSignal:
    """Whether, and by what, the process was asked to stop."""

    def __init__(self) -> None:
        """Not asked yet."""
        self.event = asyncio.Event()
        """Set at the first signal."""
        self.received: signal.Signals | None = None

    @property
    def exit_code(self) -> int:
        """128 plus the number of the signal received."""
        return 128 + (self.received or signal.SIGINT)

    @property
    def name(self) -> str:
        """The signal received, e.g. ``SIGTERM``."""
        return (self.received or signal.SIGINT).name

    async def unless(self, work: Awaitable[WorkT]) -> WorkT:
        """What ``work`` gives; it is cancelled where a signal comes first.

        Raises:
            StopRequested: the process was asked to stop.
        """
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.event.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise StopRequested
            return task.result()
        finally:
            for waiting in (task, stopping):
                waiting.cancel()
            await asyncio.gather(task, stopping, return_exceptions=True)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles both signals on the running loop; afterwards they do what they did before."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _receive(self, number: signal.Signals) -> None:
        if self.event.is_set() and number is signal.SIGINT:
            # Everything acknowledged is on disk already; whoever presses Ctrl-C twice does not want to wait.
            os.write(2, b"orchestrator: stopped at once; the same command resumes\n")
            os._exit(EXIT_INTERRUPTED)
        if not self.event.is_set():
            log.warning(
                "stopping as soon as what is under way allows, within grace_seconds; Ctrl-C again stops at once"
            )
        self.received = self.received or number
        self.event.set()
