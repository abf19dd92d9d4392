"""The process of one command: ``python -m orchestrator``, or the ``orchestrator`` script."""

import os
import sys
import threading

from orchestrator.cli import main


def run_command() -> None:
    """Carries out the command line and ends the process with its exit code."""
    code = main()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        # An agent started threads and left them. All is on disk; the interpreter would wait for them for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    run_command()
