"""Whole runs in child processes that can be killed, forked from a server that has imported what a run needs.

The libraries take ten seconds to import, so they are imported once. The server does nothing else: it has no thread and
no open file, a child of it is a process like any other, and SIGKILL is real.
"""

import faulthandler
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, cast

from orchestrator.disk import Disk
from orchestrator.process import importing
from orchestrator.testing.points import ObservedDisk, Observer

RUN_MODULES = ("orchestrator.run", "orchestrator.backends.local.service", "openai")
"""What is imported before a child is forked."""
RUN, LEDGER, OUTPUT = "run", "ledger.jsonl", "output.txt"
"""What an observed run leaves in its folder: the run directory, every request, and all that its processes printed."""

ABORT_SECONDS = 5.0
"""How long a process that is aborted may take to write its stacks."""

_one_at_a_time = threading.Lock()
"""Starting a process also asks all others for their exit codes. Two threads that ask at once read one pipe: one gets
the code, and the other takes the end of the pipe for the end of the fork server, and says 255."""


def fork_context(*more_modules: str) -> ForkServerContext:
    """The fork server's context; the server starts with the first child, and imports ``more_modules`` too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*RUN_MODULES, *more_modules])
    return context


def wait_for(process: ForkServerProcess, *, timeout_seconds: float) -> int:
    """The exit code of a started child; a killed child's is -9.

    Raises:
        TimeoutError: it has not ended in time, and is killed.
    """
    ended = ends_within(process, timeout_seconds)
    if not ended:
        with suppress(ProcessLookupError):  # it ended just now
            os.kill(cast("int", process.pid), signal.SIGABRT)  # faulthandler writes where each thread is
        ends_within(process, ABORT_SECONDS)
        process.kill()
    connection.wait([process.sentinel])
    with _one_at_a_time:
        process.join()
        code = cast("int", process.exitcode)  # None only while it lives
    if not ended:
        raise TimeoutError(
            f"process {process.pid} did not end within {timeout_seconds:.0f} s; {OUTPUT} tells where it was"
        )
    return code


def ends_within(process: ForkServerProcess, seconds: float) -> bool:
    """Whether the child ends in that time."""
    return bool(connection.wait([process.sentinel], seconds))


def print_into(folder: Path, stdout: str, stderr: str) -> None:
    """From now on this process prints into these files of ``folder``, its stacks among them when it is aborted."""
    for descriptor, name in ((1, stdout), (2, stderr)):
        file = os.open(folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    faulthandler.enable()


def run_observed(
    settings: Sequence[str],
    folder: Path,
    observer: Observer,
    *,
    disk: Disk | None = None,
    environ: Mapping[str, str] = os.environ,
    wrap_service: Callable[[Any], Any] = lambda service: service,
    forked: tuple[Path, int] | None = None,
) -> int:
    """The run command in this process, with its appends, requests and durable writes told to ``observer``.

    Its run directory is ``folder/run`` and its requests go to ``folder/ledger.jsonl``. ``disk`` (None: an observed
    one) takes the durable writes, and what ``wrap_service`` makes of the backend's service client stands beneath the
    ledger. ``forked``: the fork command instead, with this parent and batch.

    Raises:
        OrchestratorError: as the run command.
    """
    # Imported already, in the fork server: this names what is there. Who starts children does not import it.
    with importing():
        from orchestrator.backends.service import Backend, make_backend
        from orchestrator.compose import Seams
        from orchestrator.config import Config
        from orchestrator.lineage.fork import plan_fork
        from orchestrator.run import run_to_end
        from orchestrator.settings import load_config
        from orchestrator.testing.ledger import LedgerService

    def make_recorded(config: Config, log_path: Path, disk: Disk) -> Backend:
        backend = make_backend(config, log_path, disk)

        async def load_tokenizer() -> Any:
            observer("request:before:load_tokenizer")
            return await backend.load_tokenizer()

        service = LedgerService(wrap_service(backend.service), folder / LEDGER, observer)
        return replace(backend, service=service, load_tokenizer=load_tokenizer)

    used_disk = ObservedDisk(folder / RUN, observer) if disk is None else disk
    given = [*settings, f"log_path={folder / RUN}"]
    fork = None if forked is None else plan_fork(*forked, given)
    config = load_config(given, environ=environ) if fork is None else fork.config
    return run_to_end(config, Seams(make_recorded, observer, used_disk), fork=fork)


def start_process(
    target: Callable[..., None], *arguments: object, context: ForkServerContext, daemon: bool
) -> ForkServerProcess:
    """A started child; a ``daemon`` dies with this process and has no children of its own."""
    process = context.Process(target=target, args=arguments, daemon=daemon)
    with _one_at_a_time:
        process.start()
    return process
