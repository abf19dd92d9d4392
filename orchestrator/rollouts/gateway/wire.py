"""What the wire formats share: what a request asks for, LiteLLM's form of a reply, and server-sent events."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.responses import Response

from orchestrator.rollouts.compat import Choices, Message, ModelResponse, Usage
from orchestrator.rollouts.provider import BAD_REQUEST, NOT_FOUND, CallError, Completion
from orchestrator.rollouts.rendering import Reply
from orchestrator.rollouts.revealing import logprobs_of, revealed

MODEL = "policy"
"""The one model's name."""
NO_ROLLOUT = "this address belongs to no rollout; use the `endpoint` of the agent's llm"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request in the provider's terms, and how to answer it in its own."""

    messages: Any
    params: Mapping[str, Any]
    """As of a chat completion."""
    respond: Callable[[Completion], Response]


def check_common(body: Mapping[str, Any]) -> bool:
    """Whether the reply is to be streamed.

    Raises:
        CallError: another model is asked for, or ``stream`` is neither true nor false.
    """
    if body.get("model") != MODEL:
        raise CallError(NOT_FOUND, f"model: this gateway serves {MODEL!r} only; use the `model` of the agent's llm")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise CallError(BAD_REQUEST, f"stream: expected true or false, found {stream!r}")
    return bool(stream)


def check_one_sample(body: Mapping[str, Any]) -> None:
    """For the formats that have no way to tell several samples.

    Raises:
        CallError: more than one is asked for.
    """
    if body.get("n") not in (None, 1):
        raise CallError(BAD_REQUEST, "n: this interface answers with one sample; chat/completions serves several")


def check_blocks(where: str, content: Any, known: Set[str]) -> None:
    """For the formats that LiteLLM translates: it leaves out content that it has no form for without a word.

    Raises:
        CallError: ``content`` is neither text nor a list of ``known`` types of blocks.
    """
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise CallError(BAD_REQUEST, f"{where}: expected text or a list, found {type(content).__name__}")
    for block in content:
        if not isinstance(block, Mapping) or block.get("type") not in known:
            raise CallError(BAD_REQUEST, f"{where}: served are entries of type {', '.join(sorted(known))}")


def message_of(reply: Reply) -> dict[str, Any]:
    """The assistant's message in a chat completion."""
    calls = [{"id": call.id, "type": "function", "function": call.function.model_dump()} for call in reply.tool_calls]
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not reply.text else reply.text}
    if calls:
        message["tool_calls"] = calls
    if reply.thinking is not None:
        message["reasoning_content"] = reply.thinking
    return message


def choice_of(completion: Completion, index: int) -> dict[str, Any]:
    """A choice of a chat completion, but for its message."""
    reply = completion.replies[index]
    choice: dict[str, Any] = {"index": index, "finish_reason": reply.finish_reason, "logprobs": None}
    if completion.decode is not None:
        choice["logprobs"] = logprobs_of(reply.turn, completion.decode)
    if completion.reveal:
        choice["token_ids"] = list(reply.turn.sampled_tokens)
    return choice


def beside_choices(completion: Completion) -> dict[str, Any]:
    """What a chat completion tells beside its choices to who reads the tokens in it."""
    return revealed(completion.replies[0].turn) if completion.reveal else {}


def usage_of(completion: Completion) -> dict[str, int]:
    """The token counts of a chat completion."""
    asked, sampled = completion.num_prompt_tokens, completion.num_sampled_tokens
    return {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}


def new_id(prefix: str) -> str:
    """An id of a reply; it is only told, never stored."""
    return f"{prefix}{uuid.uuid4().hex}"


def model_response(completion: Completion, *, id_prefix: str = "chatcmpl-") -> ModelResponse:
    """The reply as LiteLLM and its translations take it."""
    response = ModelResponse(
        id=new_id(id_prefix),
        model=MODEL,
        choices=[
            Choices(message=Message(**message_of(reply)), **choice_of(completion, index))
            for index, reply in enumerate(completion.replies)
        ],
        usage=Usage(**usage_of(completion)),
    )
    for name, value in beside_choices(completion).items():
        setattr(response, name, value)
    return response


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """``body`` as JSON."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def event_stream(events: Iterable[Mapping[str, Any] | str], *, named: bool) -> Response:
    """Server-sent events, a text standing for itself; ``named`` gives each its ``type`` as its name.

    They leave together: a turn is recorded before any of its reply leaves, so by then the whole of it is known.
    """
    lines = []
    for event in events:
        if named and not isinstance(event, str):
            lines.append(f"event: {event['type']}\n".encode())
        lines += [b"data: ", event.encode() if isinstance(event, str) else orjson.dumps(event), b"\n\n"]
    return Response(b"".join(lines), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
