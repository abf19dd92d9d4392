"""A signal is a request to stop, and what is under way can be given up for it."""

import asyncio
import os
import signal

import pytest

from orchestrator.errors import StopRequested
from orchestrator.signals import StopSignal


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
async def test_the_first_signal_sets_the_event_and_decides_the_exit_code(
    number: signal.Signals, exit_code: int
) -> None:
    stop = StopSignal()
    with stop.handled():
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.event.wait(), 5)
    assert (stop.name, stop.exit_code) == (number.name, exit_code)


async def test_work_is_cancelled_where_a_signal_comes_first_and_ends_before_the_caller_goes_on() -> None:
    stop = StopSignal()
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    waiting = asyncio.ensure_future(stop.unless(work()))
    await asyncio.sleep(0)
    stop.event.set()
    with pytest.raises(StopRequested):
        await waiting
    assert ended == [True]


async def test_work_that_is_done_first_gives_its_result() -> None:
    async def work() -> int:
        return 7

    assert await StopSignal().unless(work()) == 7
