"""Anthropic's messages, whole and as events, in LiteLLM's translation to and from a chat completion."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from orchestrator.rollouts.compat import AnthropicAdapter
from orchestrator.rollouts.gateway.chat import sampling_fields
from orchestrator.rollouts.gateway.wire import (
    Asked,
    check_blocks,
    check_common,
    check_one_sample,
    event_stream,
    json_response,
    model_response,
)
from orchestrator.rollouts.provider import BAD_REQUEST, CallError, Completion
from orchestrator.telling import told

BLOCKS = frozenset({"text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result"})
RESULT_BLOCKS = frozenset({"text", "image"})


def read_messages(body: Mapping[str, Any]) -> Asked:
    """The request of one message.

    Raises:
        CallError: it is none of Anthropic's, or asks for another model.
    """
    stream = check_common(body)
    check_one_sample(body)
    if "max_tokens" not in body:
        raise CallError(BAD_REQUEST, "max_tokens: missing, though Anthropic's interface asks for it")
    _check_content(body.get("messages"))
    adapter = AnthropicAdapter()
    try:
        request, tool_names = adapter.translate_completion_input_params_with_tool_mapping(dict(body))
    except Exception as error:  # what LiteLLM raises for a malformed request is its own affair
        raise CallError(BAD_REQUEST, f"not a request of Anthropic's messages ({told(error)})") from error

    def respond(completion: Completion) -> Response:
        response = model_response(completion, id_prefix="msg_")
        message = dict(adapter.translate_completion_output_params(response, tool_names))
        return event_stream(_events(message), named=True) if stream else json_response(message)

    return Asked(request["messages"], sampling_fields(request), respond)


def _check_content(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise CallError(BAD_REQUEST, "messages: expected a list of at least one message")
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if not isinstance(message, Mapping) or message.get("role") not in ("user", "assistant"):
            raise CallError(BAD_REQUEST, f"{where}.role: expected user or assistant")
        content = message.get("content")
        check_blocks(f"{where}.content", content, BLOCKS)
        for block in content if isinstance(content, list) else ():
            if block["type"] == "tool_result" and block.get("content") is not None:
                check_blocks(f"{where}.content.tool_result", block["content"], RESULT_BLOCKS)


def _events(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    usage = message["usage"]
    opening = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**opening, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(message["content"]):
        start, delta = _opened(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _opened(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The block as it begins, empty, and the one delta that fills it."""
    match block["type"]:
        case "tool_use":
            return {**block, "input": {}}, {
                "type": "input_json_delta",
                "partial_json": orjson.dumps(block["input"]).decode(),
            }
        case "thinking":
            return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
        case _:
            return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
