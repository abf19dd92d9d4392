"""OpenAI's responses, whole and as events, in LiteLLM's translation to and from a chat completion."""

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from starlette.responses import Response

from orchestrator.rollouts.compat import LiteLLMCompletionResponsesConfig
from orchestrator.rollouts.gateway.chat import NOT_SAMPLING, sampling_fields
from orchestrator.rollouts.gateway.wire import (
    MODEL,
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

NOT_KEPT = ("previous_response_id", "conversation", "prompt", "background")
"""What refers to something that the service keeps; nothing is kept here between calls."""
TRANSLATED = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "parallel_tool_calls",
        "reasoning",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_p",
    }
)
WITHOUT_MEANING = NOT_SAMPLING | {"include", "truncation"}
ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
PARTS = frozenset({"input_text", "output_text", "text", "input_image", "input_file"})
EMPTY: Mapping[str, Any] = {"content": [], "arguments": ""}
"""What an item holds when it begins to be streamed."""
TRANSLATORS_OWN = frozenset({"custom_llm_provider", "extra_headers"})


def read_responses(body: Mapping[str, Any]) -> Asked:
    """The request of one response.

    Raises:
        CallError: it is none of OpenAI's, asks for another model, or for what earlier calls left behind.
    """
    stream = check_common(body)
    check_one_sample(body)
    for name in NOT_KEPT:
        if body.get(name):
            raise CallError(BAD_REQUEST, f"{name}: this gateway keeps nothing between calls; send the whole `input`")
    _check_input(body.get("input"))
    asked = {name: value for name, value in body.items() if name in TRANSLATED and value is not None}
    translated = LiteLLMCompletionResponsesConfig
    try:
        request = translated.transform_responses_api_request_to_chat_completion_request(
            model=MODEL, input=asked["input"], responses_api_request=asked
        )
    except Exception as error:  # what LiteLLM raises for a malformed request is its own affair
        raise CallError(BAD_REQUEST, f"not a request of OpenAI's responses ({told(error)})") from error
    params = {name: value for name, value in sampling_fields(request).items() if name not in TRANSLATORS_OWN}
    beyond = {name: value for name, value in body.items() if name not in TRANSLATED | WITHOUT_MEANING}

    def respond(completion: Completion) -> Response:
        response = translated.transform_chat_completion_response_to_responses_api_response(
            request_input=asked["input"],
            responses_api_request=asked,
            chat_completion_response=model_response(completion, id_prefix="resp_"),
        ).model_dump()
        response["output"] = [_in_openais_form(item) for item in response["output"]]
        return event_stream(_events(response), named=True) if stream else json_response(response)

    return Asked(request["messages"], {**beyond, **params}, respond)


def _check_input(items: Any) -> None:
    if not items:
        raise CallError(BAD_REQUEST, "input: expected text or a list of at least one item")
    if isinstance(items, list):  # a message may leave its type out
        items = [{"type": "message", **item} if isinstance(item, Mapping) else item for item in items]
        for item in items:
            if isinstance(item, Mapping) and item["type"] == "message":
                check_blocks("input: the content of a message", item.get("content"), PARTS)
    check_blocks("input", items, ITEMS)


def _in_openais_form(item: dict[str, Any]) -> dict[str, Any]:
    """LiteLLM tells what was thought as if it were a message, without the summary that clients look for."""
    if item["type"] != "reasoning":
        return item
    thought = [{"type": "reasoning_text", "text": part["text"]} for part in item["content"]]
    return {"id": item["id"], "type": "reasoning", "status": item["status"], "summary": [], "content": thought}


def _events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A whole response told as it would have come about."""
    number = count()

    def event(kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"response.{kind}", "sequence_number": next(number), **fields}

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("created", response=begun)
    yield event("in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": index}
        opened = {**item, "status": "in_progress", **{name: EMPTY[name] for name in EMPTY if name in item}}
        yield event("output_item.added", output_index=index, item=opened)
        if item["type"] == "function_call":
            yield event("function_call_arguments.delta", **place, delta=item["arguments"])
            yield event("function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"])
        for part_index, part in enumerate(item.get("content") or ()):
            inside = {**place, "content_index": part_index}
            logprobs: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
            yield event("content_part.added", **inside, part={**part, "text": ""})
            yield event(f"{part['type']}.delta", **inside, delta=part["text"], **logprobs)
            yield event(f"{part['type']}.done", **inside, text=part["text"], **logprobs)
            yield event("content_part.done", **inside, part=part)
        yield event("output_item.done", output_index=index, item=item)
    yield event("incomplete" if response["status"] == "incomplete" else "completed", response=response)
