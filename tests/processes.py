"""Runs of the whole program in child processes that can be killed.

The libraries take ten seconds to import, so the children are forked from a server that has imported them and nothing
else: it has no thread and no open file. A child is a process like any other, and SIGKILL is real.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from hanging import Hanging

from orchestrator.__main__ import run_command as run_command_line
from orchestrator.cli import carry_out

AGENTS = Path(__file__).parent / "agents"

FIXTURE_D = (
    "recipe=none",
    "agent=letters:agent",
    "train_dataset=letters:TASKS",
    "model_name=tiny",
    "lora_rank=0",
    "batch_size=2",
    "group_size=2",
    "seed=42",
    "max_tokens=4",
    "learning_rate=0.001",
    "log_path=run",
)
"""Six tasks, two a batch, two rollouts each, one epoch."""
BATCHES = [["t3", "t1"], ["t2", "t4"], ["t0", "t5"]]
"""The tasks of fixture D's batches, by group."""


def watch_nothing(_point: str) -> None:
    """The observer of a child that nothing is done to."""


@dataclass(frozen=True)
class Child:
    """How one child is to run."""

    settings: tuple[str, ...]
    """``key=value`` arguments of the run command."""
    folder: Path
    """The child's working directory: where its output, the request ledger and the run directory ``run`` go."""
    observer: Callable[[str], None] = watch_nothing
    """Called in the child at each append to the journal and each request; see ``observers``."""
    environ: tuple[tuple[str, str], ...] = ()
    """Environment variables that the child has besides the test's."""
    unanswered: str | None = None
    """A request to the backend that never gets its reply, e.g. ``optim_step``."""

    @property
    def log_path(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    @property
    def ledger(self) -> Path:
        """Every request to the backend, of this and of earlier children in the folder."""
        return self.folder / "ledger.jsonl"

    @property
    def output(self) -> str:
        """What this and earlier children in the folder printed."""
        return (self.folder / "output.txt").read_text()


def fixture_d(folder: Path, *settings: str, observer: Callable[[str], None] = watch_nothing) -> Child:
    """A run of fixture D with further settings, which win over its own."""
    given = {setting.partition("=")[0]: setting for setting in (*FIXTURE_D, *settings)}
    return Child(tuple(given.values()), folder, observer)


def run_child(child: Child, *, timeout_seconds: float = 120.0) -> int:
    """Runs to the end and returns the exit code; a killed child's is -9."""
    return wait_for(start_child(child), timeout_seconds=timeout_seconds)


def start_child(child: Child) -> Any:
    """A child that runs while the test goes on; a ``multiprocessing.Process``."""
    return _start(_child_main, child)


def wait_for(process: Any, *, timeout_seconds: float = 120.0) -> int:
    """The exit code of a started child.

    Raises:
        TimeoutError: it has not ended in time, and is killed.
    """
    process.join(timeout_seconds)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"the child did not end within {timeout_seconds} s; its output.txt tells more")
    assert process.exitcode is not None
    return int(process.exitcode)


def run_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """One command as a user types it, in ``folder``: exit code, standard output, standard error."""
    folder.mkdir(exist_ok=True)
    code = wait_for(_start(_command_main, folder, arguments))
    return code, (folder / "stdout.txt").read_text(), (folder / "stderr.txt").read_text()


def fork_context() -> ForkServerContext:
    """The fork server's context; the server starts with the first child."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["orchestrator.run", "orchestrator.backends.local.service", "openai", "processes", "observers"]
    )
    return context


def _start(target: Callable[..., None], *arguments: Any) -> Any:
    process = fork_context().Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def _child_main(child: Child) -> None:
    # Imported already, in the fork server: this only names what is there. The tests themselves do not import it.
    from orchestrator.backends.service import Backend, make_backend
    from orchestrator.config import Config
    from orchestrator.run import Seams, run_to_end
    from orchestrator.settings import load_config
    from orchestrator.testing import LedgerService

    _enter(child.folder, "output.txt", "output.txt")
    os.environ.update(child.environ)

    def make_recorded(config: Config, log_path: Path) -> Backend:
        backend = make_backend(config, log_path)
        service = backend.service if child.unanswered is None else Hanging(backend.service, child.unanswered)

        async def load_tokenizer() -> Any:
            child.observer("request:before:load_tokenizer")
            return await backend.load_tokenizer()

        return Backend(LedgerService(service, child.ledger, child.observer), load_tokenizer)

    began = time.monotonic()
    seams = Seams(make_recorded, child.observer)
    code = carry_out(lambda: run_to_end(load_config(child.settings, environ={}), seams))
    print(f"exit {code} after {time.monotonic() - began:.2f} s", file=sys.stderr)
    sys.exit(code)


def _command_main(folder: Path, arguments: tuple[str, ...]) -> None:
    _enter(folder, "stdout.txt", "stderr.txt")
    sys.argv = ["orchestrator", *arguments]
    run_command_line()


def _enter(folder: Path, stdout: str, stderr: str) -> None:
    """Makes the child live in ``folder``, write there and find the agents."""
    os.chdir(folder)
    sys.path.insert(0, str(AGENTS))
    for descriptor, name in ((1, stdout), (2, stderr)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), descriptor)
