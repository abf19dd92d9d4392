"""Runs of the whole program in child processes that can be killed.

The libraries take ten seconds to import, so the children are forked from a server that has imported them and nothing
else: it has no thread and no open file. A child is a process like any other, and SIGKILL is real.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from hanging import Hanging

from orchestrator.__main__ import run_command as run_command_line
from orchestrator.chaos.children import LEDGER, OUTPUT, RUN, print_into, run_observed, start_process
from orchestrator.chaos.children import fork_context as fork_context_with
from orchestrator.chaos.children import wait_for as wait_for_process
from orchestrator.command import carry_out
from orchestrator.disk import Disk
from orchestrator.testing.points import Observer, watch_nothing

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
)
"""Six tasks, two a batch, two rollouts each, one epoch."""
BATCHES = [["t3", "t1"], ["t2", "t4"], ["t0", "t5"]]
"""The tasks of fixture D's batches, by group."""


@dataclass(frozen=True)
class Child:
    """How one child is to run."""

    settings: tuple[str, ...]
    """``key=value`` arguments of the run command."""
    folder: Path
    """The child's working directory: where its output, the request ledger and the run directory ``run`` go."""
    observer: Observer = watch_nothing
    """Called in the child at each append, request and step of a durable write; see ``orchestrator.testing.points``."""
    disk: Disk | None = None
    """Takes the durable writes, in place of an observed disk."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Set in the child; its configuration sees no other variable."""
    unanswered: str | None = None
    """A request to the backend that never gets its reply, e.g. ``optim_step``."""
    forked: tuple[Path, int] | None = None
    """The fork command instead, with this parent and batch."""

    @property
    def log_path(self) -> Path:
        """The run directory."""
        return self.folder / RUN

    @property
    def ledger(self) -> Path:
        """Every request to the backend, of this and of earlier children in the folder."""
        return self.folder / LEDGER

    @property
    def output(self) -> str:
        """What this and earlier children in the folder printed."""
        return (self.folder / OUTPUT).read_text()


def fixture_d(
    folder: Path,
    *settings: str,
    observer: Observer = watch_nothing,
    disk: Disk | None = None,
    environ: Mapping[str, str] | None = None,
) -> Child:
    """A run of fixture D with further settings, which win over its own."""
    given = {setting.partition("=")[0]: setting for setting in (*FIXTURE_D, *settings)}
    return Child(tuple(given.values()), folder, observer, disk, environ or {})


def run_child(child: Child, *, timeout_seconds: float = 120.0) -> int:
    """Runs to the end and returns the exit code; a killed child's is -9."""
    return wait_for(start_child(child), timeout_seconds=timeout_seconds)


def start_child(child: Child, *, daemon: bool = True) -> Any:
    """A child that runs while the test goes on; a ``multiprocessing.Process``. One with workers is no ``daemon``."""
    return _start(_child_main, child, daemon=daemon)


def start_command(folder: Path, *arguments: str, environ: Mapping[str, str] | None = None) -> Any:
    """One command that runs while the test goes on and may have children; it prints into the files of ``folder``."""
    folder.mkdir(exist_ok=True)
    return _start(_command_main, folder, arguments, environ or {}, daemon=False)


def wait_for(process: Any, *, timeout_seconds: float = 120.0) -> int:
    """The exit code of a started child.

    Raises:
        TimeoutError: it has not ended in time, and is killed.
    """
    return wait_for_process(process, timeout_seconds=timeout_seconds)


def run_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """One command as a user types it, in ``folder``: exit code, standard output, standard error."""
    folder.mkdir(exist_ok=True)
    code = wait_for(_start(_command_main, folder, arguments, {}))
    return code, (folder / "stdout.txt").read_text(), (folder / "stderr.txt").read_text()


def fork_context() -> ForkServerContext:
    """The fork server's context; the server starts with the first child."""
    return fork_context_with("processes", "observers", "tinker_service")


def _start(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Any:
    return start_process(target, *arguments, context=fork_context(), daemon=daemon)


def _child_main(child: Child) -> None:
    _enter(child.folder, OUTPUT, OUTPUT)
    os.environ.update(child.environ)
    began = time.monotonic()

    def wrap_service(service: Any) -> Any:
        return service if child.unanswered is None else Hanging(service, child.unanswered)

    code = carry_out(
        lambda: run_observed(
            child.settings,
            child.folder,
            child.observer,
            disk=child.disk,
            environ=child.environ,
            wrap_service=wrap_service,
            forked=child.forked,
        )
    )
    print(f"exit {code} after {time.monotonic() - began:.2f} s", file=sys.stderr)
    sys.exit(code)


def _command_main(folder: Path, arguments: tuple[str, ...], environ: Mapping[str, str]) -> None:
    _enter(folder, "stdout.txt", "stderr.txt")
    os.environ.update(environ)
    # As from a terminal: who runs the tests in the background has it ignored, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["orchestrator", *arguments]
    run_command_line()


def _enter(folder: Path, stdout: str, stderr: str) -> None:
    """Makes the child live in ``folder``, write there and find the agents."""
    os.chdir(folder)
    sys.path.insert(0, str(AGENTS))
    print_into(folder, stdout, stderr)
    # A child's own children would come from a server of their own, which imports everything again.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
