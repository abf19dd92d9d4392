"""The slim gateway's routes: the key, the size and the form of a request, then the provider, then the reply."""

import asyncio
import hmac
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from orchestrator.rollouts.capture import ROLLOUT_KEY_HEADER
from orchestrator.rollouts.gateway.chat import read_chat
from orchestrator.rollouts.gateway.errors import error_response
from orchestrator.rollouts.gateway.messages import read_messages
from orchestrator.rollouts.gateway.responses import read_responses
from orchestrator.rollouts.gateway.wire import MODEL, NO_ROLLOUT, Asked, json_response
from orchestrator.rollouts.provider import (
    BAD_REQUEST,
    FAILED,
    NOT_FOUND,
    CallError,
    Completion,
    Provider,
    made_again,
)
from orchestrator.telling import told, trace

UNAUTHORIZED = 401
TOO_LARGE = 413
CLIENT_GONE = 499
MAX_BODY_BYTES = 32 * 2**20
HEALTH = "/health"
OF_A_ROLLOUT = "/rollout/{rollout_id}/attempt/{attempt_id}/v1"
FORMATS: Mapping[str, Callable[[Mapping[str, Any]], Asked]] = {
    "/chat/completions": read_chat,
    "/messages": read_messages,
    "/responses": read_responses,
}

log = structlog.get_logger(__name__)


def make_app(provider: Provider, key: str) -> ASGIApp:
    """The application; all of it but the health check wants ``key``, as a bearer or as Anthropic's ``x-api-key``."""
    routes = [Route(OF_A_ROLLOUT + path, _route(provider, read), methods=["POST"]) for path, read in FORMATS.items()]
    routes += [Route(f"/v1{path}", _no_rollout, methods=["POST"]) for path in FORMATS]
    routes += [Route(f"{prefix}/models", _models, methods=["GET"]) for prefix in (OF_A_ROLLOUT, "/v1")]
    app = Starlette(
        routes=[*routes, Route(HEALTH, _health, methods=["GET"])],
        exception_handlers={HTTPException: _not_served},  # type: ignore[dict-item]  # Starlette types the argument wider
    )
    app.router.redirect_slashes = False
    return _Guard(app, key)


class _Guard:
    """Asks for the key before anything is read, whatever the route."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] != HEALTH and not self._admits(scope["headers"]):
            message = "missing or wrong key; use the `api_key` of the agent's llm"
            app = error_response(scope["path"], UNAUTHORIZED, message, {"WWW-Authenticate": "Bearer"})
        await app(scope, receive, send)

    def _admits(self, headers: list[tuple[bytes, bytes]]) -> bool:
        shown = [value for name, value in headers if name == b"x-api-key"]
        for name, value in headers:
            scheme, _, credentials = value.partition(b" ")
            if name == b"authorization" and scheme.lower() == b"bearer":
                shown.append(credentials.strip())
        return any(hmac.compare_digest(value, self._key) for value in shown)


def _route(
    provider: Provider, read: Callable[[Mapping[str, Any]], Asked]
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def call(request: Request) -> Response:
        ids = request.path_params["rollout_id"], request.path_params["attempt_id"]
        try:
            asked = read(await _json_body(request))
            call = provider.complete(*ids, asked.messages, asked.params, again=made_again(request.headers))
            completion, gone = await _while_connected(request, call)
            if completion is None:
                return Response(status_code=CLIENT_GONE)
            replied = False
            try:
                response = Response(status_code=CLIENT_GONE) if gone else asked.respond(completion)
                replied = not gone
            finally:
                if not replied:
                    provider.withdraw(completion)
            if completion.rollout_key is not None:
                response.headers[ROLLOUT_KEY_HEADER] = completion.rollout_key
            return response
        except ClientDisconnect:  # before its request was whole
            return Response(status_code=CLIENT_GONE)
        except CallError as error:
            return error_response(request.url.path, error.status, str(error))
        except Exception as error:  # it must not reach the server, whose traceback would quote the request
            log.error("a call failed", error=told(error), trace=trace(error))  # noqa: TRY400 - no traceback, likewise
            return error_response(request.url.path, FAILED, f"the gateway failed: {told(error)}")

    return call


async def _json_body(request: Request) -> Mapping[str, Any]:
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise _too_large()
    chunks, num_bytes = [], 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > MAX_BODY_BYTES:
            raise _too_large()
        chunks.append(chunk)
    try:
        body = orjson.loads(b"".join(chunks))
    except orjson.JSONDecodeError as error:
        raise CallError(BAD_REQUEST, f"the body is not JSON: {error.msg} at byte {error.pos}") from error
    if not isinstance(body, dict):
        raise CallError(BAD_REQUEST, f"the body: expected a JSON object, found {type(body).__name__}")
    return body


async def _while_connected(request: Request, call: Coroutine[Any, Any, Completion]) -> tuple[Completion | None, bool]:
    """The call's reply, and whether its client has gone; where it goes first, the call is abandoned without a reply."""
    gone = asyncio.ensure_future(request.receive())  # the body is read: what comes next is the disconnection
    answer = asyncio.ensure_future(call)
    try:
        await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
        return (await answer if answer.done() else None), gone.done()
    finally:
        gone.cancel()
        answer.cancel()


async def _models(_request: Request) -> Response:
    model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "orchestrator"}
    return json_response({"object": "list", "data": [model]})


async def _no_rollout(request: Request) -> Response:
    return error_response(request.url.path, NOT_FOUND, NO_ROLLOUT)


async def _health(_request: Request) -> Response:
    return Response(status_code=204)


async def _not_served(request: Request, error: HTTPException) -> Response:
    path = request.url.path
    message = f"{request.method} {path}: {error.detail}"
    return error_response(path, error.status_code, message, dict(error.headers or {}))


def _too_large() -> CallError:
    return CallError(TOO_LARGE, f"the body is larger than {MAX_BODY_BYTES} bytes")
