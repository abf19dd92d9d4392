"""Runs of the whole program in child processes that can be killed.

The libraries take ten seconds to import, so the children are forked from a server that has imported them and nothing
else: it has no thread and no open file. A child is a process like any other, and SIGKILL is real.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

AGENTS = Path(__file__).parent / "agents"


@dataclass(frozen=True)
class Child:
    """How one child is to run."""

    settings: tuple[str, ...]
    """``key=value`` arguments of the run command."""
    folder: Path
    """The child's working directory: where logs of its output and the request ledger go."""
    kill_point: str | None = None
    kill_occurrence: int = 0


def fork_context() -> ForkServerContext:
    """The fork server's context; the server starts with the first child."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["orchestrator.run", "orchestrator.cli", "orchestrator.backends.local.service"])
    return context


def run_child(child: Child, *, timeout_seconds: float = 120.0) -> int:
    """Runs to the end and returns the exit code; a killed child's is -9."""
    process = fork_context().Process(target=_child_main, args=(child,), daemon=True)
    process.start()
    process.join(timeout_seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"the child did not end within {timeout_seconds} s; see {child.folder / 'output.txt'}")
    assert process.exitcode is not None
    return process.exitcode


def start_child(child: Child) -> Any:
    """A child that runs while the test goes on; a ``multiprocessing.Process``."""
    process = fork_context().Process(target=_child_main, args=(child,), daemon=True)
    process.start()
    return process


def _child_main(child: Child) -> None:
    # Imported already, in the fork server: this only names what is there.
    from orchestrator.backends.service import Backend, make_backend
    from orchestrator.config import Config, load_config
    from orchestrator.errors import OrchestratorError
    from orchestrator.run import Seams, run_to_end
    from orchestrator.testing import KillAt, LedgerService

    os.chdir(child.folder)
    sys.path.insert(0, str(AGENTS))
    output = os.open("output.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    observer = KillAt(child.kill_point or "never", child.kill_occurrence)

    def make_recorded(config: Config, log_path: Path) -> Backend:
        backend = make_backend(config, log_path)
        return Backend(LedgerService(backend.service, child.folder / "ledger.jsonl", observer), backend.load_tokenizer)

    try:
        code = run_to_end(load_config(child.settings, environ={}), Seams(make_recorded, observer))
    except OrchestratorError as error:
        print(f"orchestrator: {error}", file=sys.stderr)
        code = error.exit_code
    sys.exit(code)
