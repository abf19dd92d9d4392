"""What arrives at the test Tinker server: every attempt is noted, and goes wrong where a test planned it."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field

import tinker
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tinker_protocol import PROTOBUF, read_forward_backward
from tinker_server import Fault

UNNOTED = frozenset({"retrieve_future", "telemetry", "session_heartbeat"})
"""Requests that a client makes as often as it likes."""


@dataclass
class Attempt:
    """One request that arrived."""

    request: str
    model: str | None = None
    seq_id: int | None = None
    name: str | None = None
    """Of a checkpoint: its name in a save, its path in a load. Of a session: what it is displayed as."""
    optimizer: bool | None = None
    """Whether a load asks for the optimizer too."""
    status: int = 200
    at: float = field(default_factory=time.monotonic)
    """When it arrived, in seconds of the server's monotonic clock."""
    applied: bool = False
    """Its effect happened, whatever became of the reply; false for a repetition of what was applied before."""


class FrontDesk:
    """Notes, disturbs or passes on each request, and takes a test's plans."""

    def __init__(self, key: str, settled: Callable[[Response], Awaitable[None]]) -> None:
        """``settled`` waits until what the response promises has happened."""
        self._attempts: list[Attempt] = []
        self._key = key
        self._faults: list[Fault] = []
        self._settled = settled

    def routes(self) -> list[Route]:
        control = {"plan": self._plan, "forget": self._forget, "log": self._log}
        return [Route(f"/control/{name}", handle, methods=["POST"]) for name, handle in control.items()]

    def endpoint(
        self, name: str, handle: Callable[[Request, Attempt], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            attempt = Attempt(name)
            if request.headers.get("x-api-key") != self._key:
                return JSONResponse({"detail": "the key is not known"}, 401)
            if name not in UNNOTED:
                self._attempts.append(attempt)
            fault = self._next_fault(name)
            if fault is not None and fault.action == "answer":
                await self._describe(request, attempt)
                attempt.status = fault.status
                wait = fault.retry_after_seconds
                headers = {} if wait is None else {"retry-after": f"{wait:g}"}
                return JSONResponse({"detail": "refused as planned"}, fault.status, headers)
            request.state.fault = fault
            try:
                response = await handle(request, attempt)
            except tinker.APIStatusError as error:
                attempt.status = error.status_code
                return JSONResponse({"detail": str(error)}, error.status_code)
            attempt.status = response.status_code
            if fault is not None and fault.action == "drop":
                await self._settled(response)
                return _Dropped()
            return response

        return endpoint

    def _next_fault(self, name: str) -> Fault | None:
        """The first planned fault that has not let enough pass or happened often enough; it is used up by one."""
        for index, fault in enumerate(self._faults):
            if fault.request != name:
                continue
            left = asdict(fault)
            left["after" if fault.after else "times"] -= 1
            self._faults[index : index + 1] = [Fault(**left)] if left["times"] else []
            return None if fault.after else fault
        return None

    async def _describe(self, request: Request, attempt: Attempt) -> None:
        """What can be said about a request that is not carried out."""
        if request.headers.get("content-type") == PROTOBUF:
            asked = read_forward_backward(await request.body())
            attempt.model, attempt.seq_id = asked.model_id, asked.seq_id
        elif request.method == "POST":
            body = await request.json()
            attempt.model, attempt.seq_id = body.get("model_id"), body.get("seq_id")
            attempt.name = body.get("path")

    async def _plan(self, request: Request) -> Response:
        self._faults = [Fault(**fault) for fault in await request.json()]
        return JSONResponse(None)

    async def _forget(self, _request: Request) -> Response:
        self._faults, self._attempts = [], []
        return JSONResponse(None)

    async def _log(self, _request: Request) -> Response:
        return JSONResponse([asdict(attempt) for attempt in self._attempts])


class _Dropped(Response):
    """A reply that breaks off: the client is left with a closed connection and no answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"100")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise ConnectionAbortedError("dropped as planned")
