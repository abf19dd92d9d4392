"""OpenAI's chat completions, whole and in chunks."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.responses import Response

from orchestrator.rollouts.gateway.wire import (
    MODEL,
    Asked,
    beside_choices,
    check_common,
    choice_of,
    event_stream,
    json_response,
    message_of,
    new_id,
    usage_of,
)
from orchestrator.rollouts.provider import BAD_REQUEST, CallError, Completion

NOT_SAMPLING = frozenset(
    {
        "messages",
        "metadata",
        "model",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
"""Fields of a request that say nothing about what is sampled: routing, accounting and caches of OpenAI's own."""


def read_chat(body: Mapping[str, Any]) -> Asked:
    """The request of one chat completion.

    Raises:
        CallError: it asks for another model, or how to stream is not said in OpenAI's terms.
    """
    stream = check_common(body)
    options = body.get("stream_options") or {}
    if not isinstance(options, Mapping):
        raise CallError(BAD_REQUEST, f"stream_options: expected an object, found {type(options).__name__}")
    include_usage = options.get("include_usage") is True

    def respond(completion: Completion) -> Response:
        if stream:
            return event_stream(_chunks(completion, include_usage=include_usage), named=False)
        return json_response(_whole(completion))

    return Asked(body.get("messages"), sampling_fields(body), respond)


def sampling_fields(request: Mapping[str, Any]) -> dict[str, Any]:
    """What a chat completion request says about sampling."""
    return {name: value for name, value in request.items() if name not in NOT_SAMPLING}


def _whole(completion: Completion) -> dict[str, Any]:
    return {
        **_heading("chat.completion"),
        "choices": [
            {"message": message_of(reply), **choice_of(completion, index)}
            for index, reply in enumerate(completion.replies)
        ],
        "usage": usage_of(completion),
        **beside_choices(completion),
    }


def _chunks(completion: Completion, *, include_usage: bool) -> Iterator[dict[str, Any] | str]:
    heading = _heading("chat.completion.chunk")
    if include_usage:
        heading["usage"] = None
    for index, reply in enumerate(completion.replies):
        message = message_of(reply)
        calls = message.get("tool_calls")
        if calls:
            message["tool_calls"] = [{"index": position, **call} for position, call in enumerate(calls)]
        choice = choice_of(completion, index)
        yield {**heading, "choices": [{**choice, "delta": message, "finish_reason": None}]}
        yield {**heading, "choices": [{"index": index, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    if include_usage:
        yield {**heading, "choices": [], "usage": usage_of(completion)}
    yield "[DONE]"


def _heading(kind: str) -> dict[str, Any]:
    return {"id": new_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": MODEL}
