"""`report --follow`: the page on a loopback address, made anew when the journal has grown."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from orchestrator.errors import ConfigError, OrchestratorError
from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import JOURNAL_NAME

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""By which a browser may ask: a page of another site that had its own name resolve to this machine asks by that one."""
PATH_BYTES = 16
REST, MAX_REST_SECONDS = 4.0, 10.0
"""A page is not made anew for so many times the time that it took to make, so that who looks on slows no run down."""


@dataclass(slots=True)
class LivePage:
    """The newest page of a run; its methods may be called on any thread."""

    log_path: Path
    make: Callable[[], str]
    """Reads the run and gives its page. Raises OrchestratorError."""
    _seen: tuple[int, str | None] | None = None
    _page: bytes = b""
    _tag: str = ""
    _rested: float = 0.0
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def newest(self) -> tuple[bytes, str]:
        """The page and its ETag, made anew if the journal or who works on the run has changed since it was made.

        Raises:
            OrchestratorError: the run cannot be read (any more).
        """
        with self._guard:
            # Looked at before the run is read: what is added meanwhile is found the next time.
            seen = (self._size_bytes(), RunLock.holder(self.log_path))
            began = time.monotonic()
            if seen != self._seen and began >= self._rested:
                self._page = self.make().encode()
                self._tag = f'"{hashlib.sha256(self._page).hexdigest()[:32]}"'
                self._seen = seen
                ended = time.monotonic()
                self._rested = ended + min(REST * (ended - began), MAX_REST_SECONDS)
            return self._page, self._tag

    def _size_bytes(self) -> int:
        path = self.log_path / JOURNAL_NAME
        return path.stat().st_size if path.exists() else -1


def live_server(page: LivePage, *, port: int) -> tuple[ThreadingHTTPServer, str]:
    """A server of ``page``, bound to ``port`` of the loopback address (0: any free one), and the address of the page.

    The path is random: a run directory is its owner's alone, and so its page is no other user's of this machine. The
    caller runs ``serve_forever``; requests are answered on threads that end with the process.

    Raises:
        ConfigError: the port cannot be had.
    """
    path = f"/{secrets.token_urlsafe(PATH_BYTES)}"
    try:
        server = _Server((LOOPBACK, port), _Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"--port {port}: {LOOPBACK}:{port} cannot be listened on ({error}); give another port, or leave --port out"
        ) from error
    server.page, server.path = page, path
    return server, f"http://{LOOPBACK}:{server.server_address[1]}{path}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    page: LivePage
    path: str


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        """The page; 304 to who has it; anything else is not there."""
        host = self.headers.get("Host", "")
        if host not in {f"{name}:{self.server.server_address[1]}" for name in NAMES}:
            self._answer(HTTPStatus.FORBIDDEN, b"asked by another name than this server's", "text/plain")
        elif not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self._answer(HTTPStatus.NOT_FOUND, b"nothing is here", "text/plain")
        else:
            self._answer_page()

    def _answer_page(self) -> None:
        try:
            page, tag = self.server.page.newest()
        except OrchestratorError as error:
            self._answer(HTTPStatus.CONFLICT, str(error).encode(), "text/plain")
            return
        if self.headers.get("If-None-Match") == tag:
            self._answer(HTTPStatus.NOT_MODIFIED, b"", "text/html", tag)
        else:
            self._answer(HTTPStatus.OK, page, "text/html", tag)

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str, tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{content_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if tag is not None:
            self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")  # which a page cannot say of itself
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Says nothing: requests come every two seconds."""
