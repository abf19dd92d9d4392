"""The process of one command: ``python -m orchestrator``, or the ``orchestrator`` script."""

import os
import sys

from orchestrator.cli import main


def run_command() -> None:
    """Carries out the command line and ends the process with its exit code."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is on disk. The interpreter's own end would take seconds to take the libraries apart, and would wait for ever
    # for a thread that an agent started and left.
    os._exit(code)


if __name__ == "__main__":
    run_command()
