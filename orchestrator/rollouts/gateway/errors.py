"""How a call that is not answered is told: in Anthropic's shape where its messages are asked for, else in OpenAI's."""

from starlette.responses import Response

from orchestrator.rollouts.gateway.wire import json_response
from orchestrator.rollouts.provider import FAILED, UNAVAILABLE

OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
ANTHROPIC_TYPES = {**OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}
CODES = {401: "invalid_api_key", 404: "not_found", 413: "request_too_large"}


def error_response(path: str, status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a call of ``path`` that ended in ``status``."""
    if path.endswith("/messages"):
        kind = ANTHROPIC_TYPES.get(status, "api_error" if status >= FAILED else "invalid_request_error")
        return json_response(
            {"type": "error", "error": {"type": kind, "message": message}}, status, _advised(headers, status)
        )
    kind = OPENAI_TYPES.get(status, "server_error" if status >= FAILED else "invalid_request_error")
    error = {"message": message, "type": kind, "param": None, "code": CODES.get(status)}
    return json_response({"error": error}, status, _advised(headers, status))


def _advised(headers: dict[str, str] | None, status: int) -> dict[str, str] | None:
    """A gateway that stops does not come back for this rollout, so the clients' retries would only hold it up."""
    return {**(headers or {}), "x-should-retry": "false"} if status == UNAVAILABLE else headers
