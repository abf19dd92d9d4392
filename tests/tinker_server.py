"""A Tinker service for tests, in a process that outlives the runs which it serves: how to start, disturb and ask it."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import httpx
from processes import fork_context

KEY = "tml-SECRET123"
"""The one key that the server accepts; it must occur in nothing that a run writes."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with requests of one kind, once ``after`` of them have been let pass.

    ``answer``: HTTP ``status``, and nothing is applied. ``drop``: applied, and the connection closed without a reply.
    ``fail``: accepted, and the future resolves to an error of ``category``. ``fail_applied``: applied, and it does so
    all the same. ``forget``: applied, and the future answers that it is gone (410). ``never``: accepted, and the future
    never resolves. ``late``: applied half a second late. ``fresh``: weights are loaded, and their optimizer is not.
    """

    request: str
    action: Literal["answer", "drop", "fail", "fail_applied", "forget", "never", "late", "fresh"]
    status: int = 0
    after: int = 0
    times: int = 1
    retry_after_seconds: float | None = None
    category: Literal["user", "server", "unknown"] = "user"


@dataclass(frozen=True)
class TinkerServer:
    """A running server, as a test sees it."""

    url: str
    model: Path
    """The base model that it serves, a Hugging Face directory."""

    @property
    def older(self) -> "TinkerServer":
        """The same model behind a service with requests and checkpoints of its own, see ``tinker_older``."""
        return replace(self, url=f"{self.url}/older")

    def plan(self, *faults: Fault) -> None:
        """Replaces what is to go wrong from now on; the first fault that applies to a request wins."""
        self._post("plan", [asdict(fault) for fault in faults])

    def forget(self) -> None:
        """Begins a new log, and plans nothing."""
        self._post("forget", None)

    def log(self) -> list[dict[str, Any]]:
        """Every request since ``forget``, in the order of arrival; see ``tinker_attempts.Attempt``."""
        entries: list[dict[str, Any]] = self._post("log", None)
        return entries

    def checkpoints(self) -> dict[str, dict[str, str]]:
        """The sha256 of the files of each live checkpoint, by path."""
        found: dict[str, dict[str, str]] = self._post("checkpoints", None)
        return found

    def expire(self, path: str) -> None:
        """Deletes a checkpoint behind the run's back."""
        self._post("expire", path)

    def _post(self, what: str, content: Any) -> Any:
        with httpx.Client(trust_env=False) as client:
            reply = client.post(f"{self.url}/control/{what}", json=content, timeout=30)
        reply.raise_for_status()
        return reply.json()


@contextlib.contextmanager
def tinker_server(folder: Path) -> Iterator[TinkerServer]:
    """A server that keeps its model and checkpoints in ``folder``, until the context is left."""
    context = fork_context()
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(folder, there), daemon=True)
    process.start()
    there.close()
    try:
        port: int = here.recv()
        yield TinkerServer(f"http://127.0.0.1:{port}", folder / "model")
    finally:
        process.kill()
        process.join()


def _serve(folder: Path, test: Connection) -> None:
    # Imported in the fork server already; the tests themselves need none of it.
    from tinker_older import OlderService
    from tinker_service import serve

    serve(folder, test, key=KEY, older=OlderService)
