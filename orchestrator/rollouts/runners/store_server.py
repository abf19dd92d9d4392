"""Agent-lightning's store over HTTP for workers in other processes: with a key, long polls, and an eye on who lives."""

import asyncio
import contextlib
import hmac
import json
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

import uvicorn
from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orchestrator.errors import GatewayError
from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.compat import (
    OTLP_LOSES_SPANS,
    UNSET,
    Attempt,
    AttemptedRollout,
    InMemoryLightningStore,
    LightningStoreServer,
    PythonServerLauncherArgs,
    Span,
    Worker,
    forget_worker,
)
from orchestrator.rollouts.runners.claims import Claim, Claims

AGENT_HEADER = "x-orchestrator-agent"
"""What a worker plays, as of ``played``; one that plays another agent than the run's, or otherwise, is turned away."""
REPORT, GONE = "report", "gone"
"""What workers tell in the metadata of an attempt, and in their last heartbeat."""
HEALTH_PATH = "/v1/agl/health"
DEQUEUE_PATH = "/v1/agl/queues/rollouts/dequeue"
HOLD_SECONDS = 10.0
"""How long a request for work is held while there is none."""
ENDED = ("succeeded", "failed")
UNAUTHORIZED, NOT_FOUND, CONFLICT, OVER = 401, 404, 409, 410


def played(agent: str, *, traced: bool) -> str:
    """What a worker plays: the agent, and with which adapter where that is the worker's affair; ASCII, for a header."""
    name = quote(agent, safe=":._")
    return f"{name} adapter=tracer" if traced else name


class StoreServer:
    """Serves ``store`` on ``host`` and ``port``, on the event loop it is started on."""

    def __init__(
        self,
        store: InMemoryLightningStore,
        claims: Claims,
        *,
        host: str,
        port: int,
        key: str,
        agent: str,
        traced: bool = False,
        advice: str | None = None,
    ) -> None:
        """``port`` 0 takes any free one; ``agent`` is the one that workers must play, ``traced`` as of its calls.

        ``advice`` is given where rollouts wait and no worker comes; None: to start one.
        """
        self._claims = claims
        self._host, self._port = host, port
        self._advice = advice
        self._routes = _Routes(store, claims)
        gate = _Gate(self._routes.app, claims, key=key, plays=played(agent, traced=traced))
        config = uvicorn.Config(gate, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = _Server(config)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Where workers on this machine find it, e.g. ``http://127.0.0.1:4747``."""
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - nothing is bound here
        return f"http://{anywhere.get(self._host, self._host)}:{self._port}"

    async def start(self) -> None:
        """Listens.

        Raises:
            GatewayError: the address cannot be had.
        """
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listening = socket.create_server((self._host, self._port), family=family, backlog=1024)
        except OSError as error:
            raise GatewayError(
                f"store_port={self._port}: cannot listen on {self._host}:{self._port} ({error.strerror}). Give a "
                "store_host of this machine and a store_port that is free; the same command then resumes."
            ) from error
        self._port = listening.getsockname()[1]
        self._tasks = [
            asyncio.create_task(self._server.serve(sockets=[listening])),
            asyncio.create_task(self._watch()),
        ]

    async def stop(self) -> None:
        """Closes the port and ends the requests that are held. Does nothing when not started."""
        if self._tasks:
            serving, watching = self._tasks
            self._tasks = []
            watching.cancel()
            self._claims.work.set()  # releases those that are held
            self._server.should_exit = True
            await asyncio.gather(serving, watching, return_exceptions=True)

    async def leave(self, worker_id: str, why: str) -> None:
        """The worker is dead; what it held goes to others."""
        await self._routes.leave(worker_id, why)

    async def _watch(self) -> None:
        """Takes workers that fell silent for dead."""
        pause_seconds = min(1.0, self._claims.lost_seconds / 4)
        while True:
            slept_at = time.monotonic()
            await asyncio.sleep(pause_seconds)
            if time.monotonic() - slept_at > 2 * pause_seconds:
                self._claims.hear_again()
            self._claims.warn_if_nobody_comes(
                self._advice or f"start one with `python -m orchestrator runner store_address={self.address} agent=...`"
            )
            for worker_id in self._claims.silent():
                await self.leave(worker_id, f"it was silent for {self._claims.lost_seconds:g} s")


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the run."""
        yield


class _Routes(LightningStoreServer):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Agent-lightning's routes, where workers only speak of rollouts that they hold.

    What a worker says of any other, one that was given to another worker, is over, or is of an earlier process, is
    answered 404, which Agent-lightning's runner notes and lives with.
    """

    def __init__(self, store: InMemoryLightningStore, claims: Claims) -> None:
        super().__init__(store, launcher_args=PythonServerLauncherArgs(port=0, host="127.0.0.1", launch_mode="asyncio"))
        self._claims = claims

    @property
    def capabilities(self) -> Any:
        return {**super().capabilities, **OTLP_LOSES_SPANS}

    async def leave(self, worker_id: str, why: str) -> None:
        self._claims.gone(worker_id, why)
        await forget_worker(self.store, worker_id)

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        if worker_id is None:
            raise HTTPException(UNAUTHORIZED, "a worker must say who it is")
        self._claims.heard_of(worker_id)
        while True:
            rollout = await super().dequeue_rollout(worker_id)
            if rollout is None:
                return None
            rollout_key = (rollout.metadata or {}).get("rollout_key", "")
            if self._claims.claim(rollout_key, rollout.rollout_id, rollout.attempt.attempt_id, worker_id):
                return rollout

    async def dequeue_many_rollouts(self, *, limit: int = 1, worker_id: str | None = None) -> list[AttemptedRollout]:
        rollout = await self.dequeue_rollout(worker_id)
        return [] if rollout is None else [rollout]

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: Any = UNSET,
        worker_id: Any = UNSET,
        last_heartbeat_time: Any = UNSET,
        metadata: Any = UNSET,
    ) -> Attempt:
        claim = self._held(rollout_id, attempt_id)
        if metadata is not UNSET and metadata and REPORT in metadata:
            claim.report = Report(**metadata[REPORT])
        if status in ENDED and claim.report is None:
            self._claims.lose(claim, "it ended without saying how")
            raise HTTPException(NOT_FOUND, "the end of an attempt needs a report")
        attempt = await super().update_attempt(
            rollout_id, attempt_id, status=status, last_heartbeat_time=last_heartbeat_time
        )
        if status in ENDED and claim.report is not None:
            claim.end(claim.report)
        return attempt

    async def update_worker(self, worker_id: str, heartbeat_stats: Any = UNSET) -> Worker:
        if heartbeat_stats is not UNSET and heartbeat_stats.get(GONE):
            await self.leave(worker_id, str(heartbeat_stats[GONE]))
            return Worker(worker_id=worker_id)
        self._claims.heard_of(worker_id)
        return await super().update_worker(worker_id, heartbeat_stats)

    async def add_span(self, span: Span) -> Span | None:
        self._held(span.rollout_id, span.attempt_id)
        return await super().add_span(span)

    async def add_many_spans(self, spans: Sequence[Span]) -> Sequence[Span]:
        for span in spans:
            self._held(span.rollout_id, span.attempt_id)
        return await super().add_many_spans(spans)  # type: ignore[no-any-return]

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        self._held(rollout_id, attempt_id)
        return await super().get_next_span_sequence_id(rollout_id, attempt_id)  # type: ignore[no-any-return]

    def _held(self, rollout_id: str, attempt_id: str) -> Claim:
        claim = self._claims.find(rollout_id, attempt_id)
        if claim is None:
            raise HTTPException(NOT_FOUND, f"attempt {attempt_id} of rollout {rollout_id} is over or was never begun")
        return claim


class _Gate:
    """Before the routes: asks for the key, turns away workers of another agent, and holds requests for work."""

    def __init__(self, app: ASGIApp, claims: Claims, *, key: str, plays: str) -> None:
        self._app, self._claims = app, claims
        self._expected = f"Bearer {key}".encode()
        self._plays = plays

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the store serves http, and not {scope['type']}")
        headers = dict(scope["headers"])
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            await _answer(send, UNAUTHORIZED, "the store needs the run's key")
            return
        plays = headers.get(AGENT_HEADER.encode(), b"").decode("latin-1")
        if plays != self._plays:
            ours, theirs = unquote(self._plays), unquote(plays)
            await _answer(send, CONFLICT, f"this run plays agent={ours}, the worker plays agent={theirs}")
            return
        if scope["path"] == DEQUEUE_PATH:
            body = await _body(receive)
            if body is None or (self._claims.over is None and not await self._work_to_do(receive)):
                return  # the worker is gone: nothing must be taken from the queue for it
            if self._claims.over is not None:
                await _answer(send, OVER, self._claims.over)
                return
            receive = _again(body, receive)
        await self._app(scope, receive, send)

    async def _work_to_do(self, receive: Receive) -> bool:
        """Waits until there may be work, or for long enough; False where the worker went away meanwhile."""
        work = asyncio.ensure_future(self._claims.work.wait())
        gone = asyncio.ensure_future(receive())  # after the body, only a disconnect can come
        try:
            done, _ = await asyncio.wait({work, gone}, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
        return gone not in done


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None when the client goes away before its end."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body to who asks next, and then what ``receive`` gives."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return first.pop() if first else await receive()

    return receive_again


async def _answer(send: Send, status: int, problem: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": problem}).encode()})
