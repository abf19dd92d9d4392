"""The process of one command: ``python -m orchestrator``, or the ``orchestrator`` script."""

import os
import signal
import sys
from typing import Any

from orchestrator.cli import main
from orchestrator.errors import EXIT_TERMINATED


def run_command() -> None:
    """Carries out the command line and ends the process with its exit code."""
    signal.signal(signal.SIGTERM, _end_at_once)  # a run has handlers of its own for as long as it is under way
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is on disk. The interpreter's own end would take seconds to take the libraries apart, and would wait for ever
    # for a thread that an agent started and left.
    os._exit(code)


def _end_at_once(_number: int, _frame: Any) -> None:
    os._exit(EXIT_TERMINATED)


if __name__ == "__main__":
    run_command()
