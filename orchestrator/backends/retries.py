"""What becomes of each answer of the service, and saying so: its SDK waits and asks again without a word.

The SDK (0.38) decides by itself what it asks again; the table says what that is, for a user to be told why a run waits,
and what an error means for the run that the SDK has given up on.
"""

import logging
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog
import tinker
from tinker.types import RequestErrorCategory

log = structlog.get_logger(__name__)

SDK_LOGGER = "tinker._base_client"
QUIET_SECONDS = 1.0
"""The same answer to the same request is told once in this time: some are asked again at once, hundreds of times."""


class Loss(StrEnum):
    """What an error of a training client's request means for the run, once the SDK asks no more."""

    FINAL = "final"
    """The same request would be refused again, or the account: the process ends; the same command resumes."""
    CLIENT = "client"
    """The client's weights are gone or in doubt, and the service may well give another: the client is given up, and
    made again from the newest live checkpoint and the stored train steps, in the same process, ``max_attempts`` times.
    That making is not in these tables: where it fails the process ends, and the next one has a session of its own.
    """


class RetryClass(StrEnum):
    """What the SDK does about an answer."""

    POLL = "poll"
    """There is no result yet; it is asked for again, as it always is. Not told."""
    RETRY = "retry"
    """The request is made again with the same ``seq_id``, so that it is carried out once: after the time that
    ``Retry-After`` says, or after a growing one, for minutes. Told."""
    FINAL = "final"
    """The request fails with the SDK's exception, and with it the state; the same command resumes."""


CLASSES: Mapping[range, tuple[RetryClass, Loss]] = {
    # the account is out of credit: asked again for an hour
    range(402, 403): (RetryClass.RETRY, Loss.FINAL),
    # the model is gone. A checkpoint that is gone is told by the same status, and dealt with by who asked for it
    range(404, 405): (RetryClass.FINAL, Loss.CLIENT),
    range(408, 409): (RetryClass.POLL, Loss.CLIENT),
    # a checkpoint name is taken, see ``CheckpointLedger``, or the order of requests is broken: asked again all the same
    range(409, 410): (RetryClass.RETRY, Loss.CLIENT),
    # the result of a request was thrown away before it was fetched
    range(410, 411): (RetryClass.FINAL, Loss.CLIENT),
    range(429, 430): (RetryClass.RETRY, Loss.CLIENT),
    range(500, 600): (RetryClass.RETRY, Loss.CLIENT),
}
"""By HTTP status: what the SDK does, and what it means when it gives up. All others, 400, 401, 403 and 422 among them,
are final in both senses."""

FAILED_REQUESTS: Mapping[RequestErrorCategory, Loss] = {
    RequestErrorCategory.User: Loss.FINAL,
    RequestErrorCategory.Server: Loss.CLIENT,
    RequestErrorCategory.Unknown: Loss.CLIENT,
}
"""Of a request that was accepted and failed later, by the category that the service gives."""
POISONED = "poisoned"
"""In what the SDK raises (a plain RuntimeError) for every request of a client that an earlier one has broken."""


def retry_class(status: int) -> RetryClass:
    """What the SDK does about an answer that is an error."""
    return _classes(status)[0]


def loss_of(error: BaseException) -> Loss:
    """What an error means that a training client's request has ended in.

    What never reached the service, or whose reply was lost until the SDK gave up, may or may not have been applied:
    the client is lost. So is one that the SDK itself has given up, and one whose result cannot be fetched, which is
    told as an error about the answer that caused it.
    """
    match error:
        case tinker.RequestFailedError():
            return FAILED_REQUESTS[error.category]
        case tinker.APIStatusError():
            return _classes(error.status_code)[1]
        case tinker.APIConnectionError():
            return Loss.CLIENT
        case RuntimeError() if POISONED in str(error):
            return Loss.CLIENT
    return Loss.FINAL if error.__cause__ is None else loss_of(error.__cause__)


def _classes(status: int) -> tuple[RetryClass, Loss]:
    final = (RetryClass.FINAL, Loss.FINAL)
    return next((found for statuses, found in CLASSES.items() if status in statuses), final)


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
