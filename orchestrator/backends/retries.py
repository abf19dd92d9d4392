"""What becomes of each answer of the service, and saying so: its SDK waits and asks again without a word.

The SDK (0.38) decides by itself what it asks again; the table says what that is, for a user to be told why a run waits.
"""

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

log = structlog.get_logger(__name__)

SDK_LOGGER = "tinker._base_client"
QUIET_SECONDS = 1.0
"""The same answer to the same request is told once in this time: some are asked again at once, hundreds of times."""


class RetryClass(StrEnum):
    """What the SDK does about an answer."""

    POLL = "poll"
    """There is no result yet; it is asked for again, as it always is. Not told."""
    RETRY = "retry"
    """The request is made again with the same ``seq_id``, so that it is carried out once: after the time that
    ``Retry-After`` says, or after a growing one, for minutes. Told."""
    FINAL = "final"
    """The request fails with the SDK's exception, and with it the state; the same command resumes."""


RETRY_CLASSES: Mapping[range, RetryClass] = {
    range(402, 403): RetryClass.RETRY,  # the account is out of credit: asked again for an hour
    range(408, 409): RetryClass.POLL,
    range(409, 410): RetryClass.RETRY,  # a checkpoint name is taken: asked again all the same, see ``CheckpointLedger``
    range(429, 430): RetryClass.RETRY,
    range(500, 600): RetryClass.RETRY,
}
"""By HTTP status; what is not in it is final."""


def retry_class(status: int) -> RetryClass:
    """The class of an answer that is an error."""
    return next((found for statuses, found in RETRY_CLASSES.items() if status in statuses), RetryClass.FINAL)


def tell_retries() -> None:
    """Has every request that the SDK makes again logged as a warning: which, why, and how long it waits."""
    logger = logging.getLogger(SDK_LOGGER)
    if not any(isinstance(found, _RetryTeller) for found in logger.filters):
        logger.addFilter(_RetryTeller())
    logger.setLevel(logging.DEBUG)


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request under way."""

    request: str
    answer: str = "none"
    retry_class: RetryClass = RetryClass.RETRY
    retry_after: str | None = None


_exchange: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)
"""Of the task that the SDK makes a request in."""


class _RetryTeller(logging.Filter):
    """Reads the debug lines that the SDK writes about each request, and lets none of them through: they hold prompts.

    The lines are the one place where it says what it waits for. Should a later version word them differently, nothing
    is told and nothing else changes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record goes on to the log."""
        if record.levelno >= logging.INFO:
            return True
        args: Any = record.args
        exchange = _exchange.get()
        match record.msg:
            case "Sending HTTP Request: %s %s":
                method, url = args
                _exchange.set(_Exchange(f"{method} {url.path}"))
            case 'HTTP Response: %s %s "%i %s" %s' if exchange is not None:
                _, _, status, reason, headers = args
                answer = f"{status} {reason}".strip()
                _exchange.set(_Exchange(exchange.request, answer, retry_class(status), headers.get("retry-after")))
            case "Retrying request to %s in %f seconds" if exchange is not None:
                self._tell(exchange, wait_seconds=round(float(args[1]), 3))
            case "Re-raising status error" if exchange is not None and exchange.retry_class == RetryClass.RETRY:
                self._tell(exchange, retry_after=exchange.retry_after)
            case "Raising timeout error" | "Raising connection error" if exchange is not None:
                self._tell(exchange)
        return False

    def _tell(self, exchange: _Exchange, **wait: Any) -> None:
        now, key = time.monotonic(), (exchange.request, exchange.answer)
        if now - self._told.get(key, -QUIET_SECONDS) < QUIET_SECONDS:
            return
        self._told[key] = now
        log.warning(
            "the service did not carry out a request, which is tried again",
            request=exchange.request,
            answer=exchange.answer,
            **{name: value for name, value in wait.items() if value is not None},
        )
