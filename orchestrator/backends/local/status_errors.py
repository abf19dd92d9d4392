"""The SDK's own exceptions for requests that the embedded backend refuses, so that callers handle one set of errors."""

from collections.abc import Mapping

import httpx
import tinker

from orchestrator.errors import OwnWordsError


class LocalBadRequestError(OwnWordsError, tinker.BadRequestError):
    """HTTP 400 of the embedded backend, whose message quotes no request."""


def bad_request(message: str) -> tinker.BadRequestError:
    """HTTP 400: the request can never be carried out."""
    return LocalBadRequestError(message, response=_response(400), body=None)


def not_found(message: str) -> tinker.NotFoundError:
    """HTTP 404: the checkpoint was deleted, has expired or never was."""
    return tinker.NotFoundError(message, response=_response(404), body=None)


def conflict(message: str, body: Mapping[str, str]) -> tinker.ConflictError:
    """HTTP 409: the name is taken; ``body`` tells by what."""
    return tinker.ConflictError(message, response=_response(409), body=body)


def _response(status_code: int) -> httpx.Response:
    return httpx.Response(status_code, request=httpx.Request("POST", "local://backend"))
