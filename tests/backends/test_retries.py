import logging

import httpx
import pytest
import tinker
from tinker.types import RequestErrorCategory

from orchestrator.backends.retries import SDK_LOGGER, Loss, RetryClass, loss_of, retry_class, tell_retries


@pytest.mark.parametrize(
    ("status", "expected", "loss"),
    [
        (400, RetryClass.FINAL, Loss.FINAL),
        (401, RetryClass.FINAL, Loss.FINAL),
        (402, RetryClass.RETRY, Loss.FINAL),
        (403, RetryClass.FINAL, Loss.FINAL),
        (404, RetryClass.FINAL, Loss.CLIENT),
        (408, RetryClass.POLL, Loss.CLIENT),
        (409, RetryClass.RETRY, Loss.CLIENT),
        (410, RetryClass.FINAL, Loss.CLIENT),
        (422, RetryClass.FINAL, Loss.FINAL),
        (429, RetryClass.RETRY, Loss.CLIENT),
        (500, RetryClass.RETRY, Loss.CLIENT),
        (599, RetryClass.RETRY, Loss.CLIENT),
    ],
)
def test_every_status_has_one_class_and_means_one_thing_once_it_is_asked_no_more(
    status: int, expected: RetryClass, loss: Loss
) -> None:
    assert (retry_class(status), loss_of(answer(status))) == (expected, loss)


@pytest.mark.parametrize(
    ("error", "loss"),
    [
        (tinker.RequestFailedError("no", "1", RequestErrorCategory.User), Loss.FINAL),
        (tinker.RequestFailedError("no", "1", RequestErrorCategory.Server), Loss.CLIENT),
        (tinker.RequestFailedError("no", "1", RequestErrorCategory.Unknown), Loss.CLIENT),
        (tinker.APIConnectionError(httpx.Request("POST", "http://here")), Loss.CLIENT),
        (RuntimeError("this TrainingClient is poisoned"), Loss.CLIENT),
        (RuntimeError("shapes differ"), Loss.FINAL),
        (KeyError("logprobs"), Loss.FINAL),
    ],
    ids=repr,
)
def test_what_else_may_be_raised_means_one_thing(error: Exception, loss: Loss) -> None:
    assert loss_of(error) == loss


def test_an_error_about_an_answer_means_what_the_answer_does() -> None:
    """The SDK raises a ValueError, or an exception of its own, where a result cannot be fetched."""
    for status, loss in ((404, Loss.CLIENT), (400, Loss.FINAL)):
        error = ValueError("Error retrieving result")
        error.__cause__ = answer(status)
        assert loss_of(error) == loss


def answer(status: int) -> tinker.APIStatusError:
    response = httpx.Response(status, request=httpx.Request("POST", "http://here"))
    return tinker.APIStatusError("no", response=response, body=None)


def test_the_sdks_debug_lines_which_quote_prompts_go_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """H19: they are read for what they say about waits."""
    tell_retries()
    tell_retries()
    logger = logging.getLogger(SDK_LOGGER)
    caplog.set_level(logging.DEBUG)
    logger.debug("Request options: %s", {"json_data": "CANARY-77"})
    logger.warning("Deprecation notice: %s", "an old route")
    assert caplog.messages == ["Deprecation notice: an old route"]
    assert len(logger.filters) == 1
