"""The slim gateway's server: uvicorn in a thread of its own, on a socket that is ours before it starts."""

import asyncio
import socket
from concurrent.futures import Future
from threading import Thread

import structlog
import uvicorn

from orchestrator.errors import GatewayError
from orchestrator.rollouts.gateway.app import make_app
from orchestrator.rollouts.gateway.listening import BACKLOG, Binding
from orchestrator.rollouts.provider import Provider
from orchestrator.telling import told

log = structlog.get_logger(__name__)

START_SECONDS = 60.0
STOP_SECONDS = 10.0
GRACE_SECONDS = 1
"""What answers in flight get once the gateway stops; the provider has ended theirs before."""
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections (httpx: 5 s), so that none calls on one that is just being closed."""


class SlimServer:
    """One server; a process can have many, and start each again once it is stopped."""

    def __init__(self, provider: Provider, key: str) -> None:
        """``key`` is asked for on every route but the health check."""
        self._app = make_app(provider, key)
        self._server: _Server | None = None
        self._thread: Thread | None = None

    async def start(self, binding: Binding) -> Binding:
        """Listens. Who binds the socket owns the port, so nothing else can answer on it.

        Raises:
            GatewayError: another process holds the port, or the server does not come up.
        """
        listener, binding = binding.listen()
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = _Server(config)
        thread = Thread(target=_run, args=(server, listener), name="gateway", daemon=True)
        thread.start()
        try:
            await asyncio.wait_for(asyncio.wrap_future(server.up), START_SECONDS)
        except Exception as error:  # whatever ended the thread
            server.should_exit = True
            raise GatewayError(
                f"the gateway did not come up on {binding.host}:{binding.port}: {told(error)}; the same command resumes"
            ) from error
        self._server, self._thread = server, thread
        return binding

    async def stop(self) -> None:
        """Closes the port and ends the thread."""
        server, self._server = self._server, None
        thread, self._thread = self._thread, None
        if server is not None and thread is not None:
            server.should_exit = True
            await asyncio.to_thread(thread.join, STOP_SECONDS)
            if thread.is_alive():
                log.warning("the gateway's thread hangs and is left behind", seconds=STOP_SECONDS)


class _Server(uvicorn.Server):
    """Tells when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up: Future[None] = Future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set_result(None)


def _run(server: _Server, listener: socket.socket) -> None:
    try:
        with listener:
            server.run(sockets=[listener])
    except BaseException as error:  # a thread has nobody to raise to
        if server.up.done():
            raise
        server.up.set_exception(error)
