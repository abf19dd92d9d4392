"""What becomes of a command that is carried out: its exit code, and the one message that its error is told as."""

import os
import sys
from collections.abc import Callable

from orchestrator.errors import EXIT_FAILED, EXIT_INTERRUPTED, OrchestratorError
from orchestrator.redaction import Redactor
from orchestrator.telling import trace


def carry_out(command: Callable[[], int]) -> int:
    """The exit code of ``command``; what it raises is told as one message on stderr, without secrets and quotes."""
    try:
        code = command()
        sys.stdout.flush()  # so that a reader who went away shows here, and not when the interpreter exits
        return code
    except OrchestratorError as error:
        print(f"orchestrator: {Redactor()(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) went away. What is still buffered is written at exit, to nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        print(
            f"orchestrator: {trace(error)}. No error was expected here; `python -X dev -m orchestrator ...` shows the "
            "traceback whole, with what it quotes",
            file=sys.stderr,
        )
        return EXIT_FAILED
