"""No wait for a backend's reply is for ever."""

import asyncio

import pytest

from orchestrator.backends.deadline import reply_within
from orchestrator.errors import BackendError


async def test_a_reply_that_never_comes_is_an_error_that_names_the_request_and_the_option() -> None:
    with pytest.raises(BackendError, match=r"saving weights/000004: no reply within backend_timeout_seconds=0\.01"):
        await reply_within(0.01, asyncio.Event().wait(), "saving weights/000004")


async def test_a_reply_in_time_and_its_own_error_pass_through() -> None:
    async def reply() -> int:
        return 7

    async def refuse() -> int:
        raise ConnectionError("refused")

    assert await reply_within(5, reply(), "asking") == 7
    with pytest.raises(ConnectionError, match="refused"):
        await reply_within(5, refuse(), "asking")
