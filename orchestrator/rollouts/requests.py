"""What an agent's chat request asks for: its messages and sampling parameters, checked before anything is sampled."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import orjson
from tinker_cookbook.renderers import Message, TextPart, ThinkingPart, ToolCall

MAX_NUM_SAMPLES = 128
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
IGNORED = frozenset({"stream", "stream_options", "max_retries", "user"})
"""Parameters that change nothing about what is sampled."""
HONOURED = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stop", "n", "logprobs"}
)
TOOL_PARAMETERS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""Honoured too, by ``tools.read_tools``."""
LEGACY = frozenset({"functions", "function_call"})
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "min_p": (0,),
    "logit_bias": ({},),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none", "auto"),
}
"""Parameters that cannot be honoured, with the values under which there is nothing to honour."""


class RequestError(ValueError):
    """The request cannot be served as it is; the message goes back to the agent with status 400."""


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How a policy is sampled where the agent does not say."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1: all tokens."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request is sampled."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    num_samples: int
    seed: int | None
    """None: derived from what is asked."""
    stop: tuple[str, ...]
    """The agent's own stop strings, besides the renderer's."""
    logprobs: bool = False
    """Whether the reply tells the logprob of each sampled token."""


def read_sampling(params: Mapping[str, Any], defaults: SamplingDefaults) -> Sampling:
    """The request's sampling parameters over ``defaults``; nulls count as not given.

    Raises:
        RequestError: a value is out of its range or of a wrong type, or a parameter cannot be honoured.
    """
    given = {name: value for name, value in params.items() if value is not None and name not in IGNORED}
    honoured = HONOURED | TOOL_PARAMETERS
    for name, value in given.items():
        if name in honoured or value in NEUTRAL.get(name, ()):
            continue
        if name in LEGACY:
            raise RequestError(f"{name}: the form of tool calling that was before `tools`; use tools and tool_choice")
        raise RequestError(
            f"{name}: this gateway cannot honour it; leave it out. Honoured are {', '.join(sorted(honoured))}"
        )
    asked_tokens = given.get("max_completion_tokens", given.get("max_tokens", defaults.max_tokens))
    return Sampling(
        max_tokens=_integer("max_tokens", asked_tokens, least=1),
        temperature=_number(
            "temperature", given.get("temperature", defaults.temperature), "at least 0", lambda x: x >= 0
        ),
        top_p=_number("top_p", given.get("top_p", defaults.top_p), "more than 0 and at most 1", lambda x: 0 < x <= 1),
        top_k=_top_k(given.get("top_k", defaults.top_k)),
        num_samples=_integer("n", given.get("n", 1), least=1, most=MAX_NUM_SAMPLES),
        seed=_integer("seed", given["seed"], least=-(2**63), most=2**63 - 1) if "seed" in given else None,
        stop=_stop(given.get("stop", [])),
        logprobs=_boolean("logprobs", given.get("logprobs", False)),
    )


def read_messages(messages: Any) -> list[Message]:
    """The request's messages as the renderer takes them; lists of text parts become one text.

    A tool's result that does not say the tool's name gets it from the call it answers: some renderers write the name.
    Checked by hand because pydantic cannot validate the renderer's TypedDicts before Python 3.12.

    Raises:
        RequestError: a message is not one of text; says which by its position.
    """
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one message")
    read = [_message(position, message) for position, message in enumerate(messages)]
    _name_results(read)
    return read


def _name_results(messages: Sequence[Message]) -> None:
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.function.name for call in message.get("tool_calls", ()) if call.id is not None}
        answered = message.get("tool_call_id")
        if answered in names and "name" not in message:
            message["name"] = names[answered]


def _message(position: int, message: Any) -> Message:
    where = f"messages[{position}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where}: expected an object, found {type(message).__name__}")
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise RequestError(f"{where}.role: expected one of {', '.join(ROLES)}")
    if message.get("function_call"):
        raise RequestError(f"{where}.function_call: the form of tool calling that was before `tools`; use tool_calls")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls: expected a list, found {type(calls).__name__}")
    if calls and role != "assistant":
        raise RequestError(f"{where}.tool_calls: only assistants call tools, and this is a message of role {role}")
    tool_calls = [_tool_call(where, call) for call in calls]
    content = message.get("content")
    if content is None and not tool_calls:
        raise RequestError(f"{where}.content: expected text, found none")
    text = "" if content is None else _text(where, content)
    thinking = message.get("reasoning_content")
    rendered = Message(role=role, content=text)
    if role == "assistant" and isinstance(thinking, str) and thinking:
        rendered["content"] = [ThinkingPart(type="thinking", thinking=thinking), TextPart(type="text", text=text)]
    if tool_calls:
        rendered["tool_calls"] = tool_calls
    if role == "tool":
        if isinstance(message.get("tool_call_id"), str):
            rendered["tool_call_id"] = message["tool_call_id"]
        if isinstance(message.get("name"), str):
            rendered["name"] = message["name"]
    return rendered


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{where}.content: expected text or a list of text parts, found {type(content).__name__}")
    for part in content:
        if not (isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)):
            raise RequestError(
                f"{where}.content: only parts of type text are served; the model behind this gateway reads no others"
            )
    return "".join(part["text"] for part in content)


def _tool_call(where: str, call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    name, arguments = (
        (function.get("name"), function.get("arguments")) if isinstance(function, Mapping) else (None, None)
    )
    if not (isinstance(name, str) and isinstance(arguments, str)):
        raise RequestError(f"{where}.tool_calls: expected functions with a name and arguments as JSON text")
    arguments = arguments.strip() or "{}"  # nothing is how some clients write no arguments
    if not is_json_object(arguments):
        raise RequestError(f"{where}.tool_calls: the arguments of {name} are not a JSON object")
    call_id = call.get("id")
    return ToolCall(
        function=ToolCall.FunctionBody(name=name, arguments=arguments), id=call_id if isinstance(call_id, str) else None
    )


def is_json_object(text: str) -> bool:
    """Whether ``text`` is one object of JSON that every reader reads alike, and every writer can write again.

    Python reads more: NaN and Infinity, numbers beyond 64 bits, halves of surrogate pairs, any depth.
    """
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
        orjson.dumps(value)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(value, dict)


def _number(name: str, value: Any, expected: str, accepts: Any) -> float:
    """JSON has one kind of number, so 0 and 0.0 are alike; true and false are none, though Python thinks so."""
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or not accepts(value):
        raise RequestError(f"{name}: expected a number of {expected}, found {value!r}")
    return float(value)


def _integer(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise RequestError(f"{name}: expected an integer {bounds}, found {value!r}")
    return value


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name}: expected true or false, found {value!r}")
    return value


def _top_k(value: Any) -> int:
    return (
        -1 if value == -1 and not isinstance(value, bool) else _integer("top_k (or -1 for all tokens)", value, least=1)
    )


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError("stop: expected a text or a list of texts, none of them empty")
    return tuple(stops)
