import logging

import pytest

from orchestrator.backends.retries import SDK_LOGGER, RetryClass, retry_class, tell_retries


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, RetryClass.FINAL),
        (401, RetryClass.FINAL),
        (402, RetryClass.RETRY),
        (404, RetryClass.FINAL),
        (408, RetryClass.POLL),
        (409, RetryClass.RETRY),
        (422, RetryClass.FINAL),
        (429, RetryClass.RETRY),
        (500, RetryClass.RETRY),
        (599, RetryClass.RETRY),
    ],
)
def test_every_status_has_one_class(status: int, expected: RetryClass) -> None:
    assert retry_class(status) == expected


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
