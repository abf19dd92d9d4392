"""How the commands on a run's past say what they do: a line each on standard error, since they keep no log."""

import logging
import sys

import structlog


def speak() -> None:
    """From now on what is logged in this process goes to standard error, from ``info`` on."""
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.dev.ConsoleRenderer(colors=False)],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
