"""Runs whose agents are played by the ``runner`` command, and the runners that play them."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from processes import Child, fixture_d, start_command

from orchestrator.testing.points import Observer, watch_nothing

KEY = "0123456789abcdef-of-the-tests"
KEY_IN_ENVIRON = {"ORCHESTRATOR_STORE_KEY": KEY}


def external(folder: Path, *settings: str, observer: Observer = watch_nothing) -> tuple[Child, Callable[..., Any]]:
    """A run of fixture D with ``placement=external`` on a port of its own, and what starts a runner for it.

    The second takes further settings of the ``runner`` command, which win, and gives the started process.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    placed = ("placement=external", f"store_port={port}", "worker_lost_seconds=5")
    child = fixture_d(folder, *placed, *settings, observer=observer, environ=KEY_IN_ENVIRON)
    agent = next(setting for setting in child.settings if setting.startswith("agent="))
    return child, partial(start_runner, folder, f"store_address=http://127.0.0.1:{port}", agent)


def store_port(child: Child) -> int:
    """Where the store of an external run is."""
    return next(int(setting.partition("=")[2]) for setting in child.settings if setting.startswith("store_port="))


def start_runner(folder: Path, *settings: str, key: str = KEY) -> Any:
    """A ``runner`` command in ``folder``; the last setting of a name counts."""
    given = {setting.partition("=")[0]: setting for setting in settings}
    return start_command(folder, "runner", *given.values(), environ={"ORCHESTRATOR_STORE_KEY": key})


@contextmanager
def running(process: Any) -> Iterator[Any]:
    """``process``, killed at the end, with its workers, where it still runs."""
    try:
        yield process
    finally:
        process.kill()
        process.join()


def stored_rollouts(child: Child) -> dict[str, bytes]:
    """The files of rollouts, by name."""
    return {path.name: path.read_bytes() for path in sorted((child.log_path / "rollouts").iterdir())}


def kill(process: Any) -> None:
    """SIGKILL, and waits for the end."""
    os.kill(process.pid, signal.SIGKILL)
    process.join()
