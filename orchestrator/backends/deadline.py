"""The longest wait for one reply of a backend: none waits for ever."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from orchestrator.errors import BackendError

ReplyT = TypeVar("ReplyT")


async def reply_within(seconds: float, request: Awaitable[ReplyT], what: str) -> ReplyT:
    """The reply to ``request``, which is ``what`` in words.

    Raises:
        BackendError: there was none within ``seconds``, the configuration's ``backend_timeout_seconds``.
    """
    try:
        async with asyncio.timeout(seconds):
            return await request
    except TimeoutError as error:
        raise BackendError(
            f"{what}: no reply within backend_timeout_seconds={seconds:g}; run the same command again to resume"
        ) from error
