"""Laws of what an agent may ask: honoured exactly, or refused by name."""

from typing import Any

import pytest

from orchestrator.rollouts.requests import (
    RequestError,
    Sampling,
    SamplingDefaults,
    read_messages,
    read_sampling,
)

DEFAULTS = SamplingDefaults(max_tokens=16, temperature=0.7, top_p=0.9, top_k=5)


def test_what_is_not_asked_is_the_policys() -> None:
    nothing: dict[str, Any] = {
        "stream": False,
        "max_retries": 0,
        "temperature": None,
        "tools": [],
        "presence_penalty": 0.0,
    }
    assert read_sampling(nothing, DEFAULTS) == Sampling(16, 0.7, 0.9, 5, 1, None, ())


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 1.5}, "temperature", 1.5),
        ({"top_p": 1}, "top_p", 1.0),
        ({"top_k": -1}, "top_k", -1),
        ({"top_k": 3}, "top_k", 3),
        ({"max_tokens": 8}, "max_tokens", 8),
        ({"max_completion_tokens": 9}, "max_tokens", 9),
        ({"n": 2}, "num_samples", 2),
        ({"seed": 0}, "seed", 0),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "yz"]}, "stop", ("x", "yz")),
        ({"logprobs": True}, "logprobs", True),
    ],
)
def test_what_is_asked_is_honoured(asked: dict[str, Any], field: str, value: Any) -> None:
    honoured = getattr(read_sampling(asked, DEFAULTS), field)
    assert honoured == value
    assert type(honoured) is type(value)


REFUSED: dict[str, list[Any]] = {
    "temperature": [True, False, -0.1, "1", float("nan"), float("inf"), []],
    "top_p": [True, 0, 1.1],
    "top_k": [True, 0, -2, 1.0],
    "max_tokens": [True, 0, 8.0, "8"],
    "n": [0, True, 129],
    "seed": [1.0, True],
    "stop": ["", [""], [1], 3],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "response_format": [{"type": "json_object"}],
    "presence_penalty": [0.5],
    "logprobs": [1, "true"],
    "top_logprobs": [2],
    "frobnicate": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in REFUSED for value in REFUSED[name]])
def test_what_cannot_be_honoured_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name):
        read_sampling({name: value}, DEFAULTS)


def test_text_parts_become_one_text_and_developers_speak_as_the_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read_messages([{"role": "developer", "content": "s"}, {"role": "user", "content": parts}]) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
    ]


def called(arguments: str) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_no_arguments_are_an_empty_object() -> None:
    (asked,) = read_messages([{"role": "assistant", "content": None, "tool_calls": [called(" ")]}])
    assert asked["tool_calls"][0].function.arguments == "{}"


def test_tool_calls_and_their_results_reach_the_renderer() -> None:
    asked, result = read_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [called("{}")]},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
        ]
    )
    assert [(made.id, made.function.name, made.function.arguments) for made in asked["tool_calls"]] == [
        ("c1", "f", "{}")
    ]
    assert result == {"role": "tool", "content": "r", "tool_call_id": "c1", "name": "f"}


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (["hello"], r"messages\[0\]"),
        ([{"role": "user", "content": "x"}, {"role": "wizard", "content": "x"}], r"messages\[1\].role"),
        ([{"role": ["user"], "content": "x"}], r"messages\[0\].role"),
        ([{"role": "user"}], r"messages\[0\].content"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], r"messages\[0\].content"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], r"messages\[0\].tool_calls"),
        ([{"role": "assistant", "tool_calls": 3}], r"messages\[0\].tool_calls"),
        ([{"role": "user", "content": "x", "tool_calls": [called("{}")]}], r"messages\[0\].tool_calls: only assist"),
        ([{"role": "assistant", "tool_calls": [called("{")]}], "the arguments of f are not a JSON object"),
        ([{"role": "assistant", "tool_calls": [called("[]")]}], "the arguments of f are not a JSON object"),
        ([{"role": "assistant", "tool_calls": [called('{"x": NaN}')]}], "the arguments of f are not a JSON object"),
        ([{"role": "assistant", "content": "x", "function_call": {"name": "f"}}], r"messages\[0\].function_call"),
        ([{"role": "function", "content": "x"}], r"messages\[0\].role"),
    ],
)
def test_a_message_that_is_not_text_is_refused_by_its_position(messages: Any, where: str) -> None:
    with pytest.raises(RequestError, match=where):
        read_messages(messages)
