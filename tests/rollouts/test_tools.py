"""Laws of tools: what is offered reaches the model, what it calls reaches the agent, and neither is made up."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rollouts.byte_pairs import byte_pair_tokenizer
from rollouts.episodes import Episode
from tinker_cookbook import renderers

from orchestrator.rollouts.provider import CallError
from orchestrator.rollouts.requests import RequestError
from orchestrator.rollouts.tools import TOOL_RENDERERS, read_tools

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        "strict": True,
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Málaga"}}\n</tool_call>'
NAMES = [
    name
    for name in re.findall(r'name == "(\w+)"', Path(renderers.__file__).read_text())
    if name != "tml_v0"  # its tokenizer comes with a package of its own
]


def episode(renderer_name: str = "qwen3_instruct", **params: Any) -> Episode:
    made = Episode(renderer_name, byte_pair_tokenizer(), system="Be brief.")
    made.params = {"tools": [WEATHER], **params}
    made.say("How is the weather?")
    return made


def answer_to(made: Episode, text: str, **params: Any) -> dict[str, Any]:
    answer = made.ask(made.encode(text) + made.end, **params)
    return dict(answer["choices"][0])


@pytest.mark.parametrize("name", NAMES)
def test_a_renderer_declares_the_tools_or_refuses_them_naming_those_that_can(name: str) -> None:
    made = episode(name)
    if not name.startswith(TOOL_RENDERERS):
        with pytest.raises(CallError, match=r"no form for tools.*qwen3, deepseekv3") as refusal:
            made.ask(made.end)
        assert refusal.value.status == 400
        assert made.client.prompts == []
        return
    made.ask(made.end)
    prompt = made.rendering.tokenizer.decode(made.client.prompts[0])
    assert all(part in prompt for part in ("weather", "The weather of a city", "city", "Be brief."))
    assert '"strict"' not in prompt


def test_a_call_reaches_the_agent_in_openais_form_and_its_result_reaches_the_model() -> None:
    made = episode()
    answer = made.ask(made.encode(f"Let me look.\n{CALL}") + made.end)
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    message = made.take(answer)
    (call,) = message["tool_calls"]
    assert message["content"] == "Let me look."
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Málaga"}
    made.messages.append({"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "sunny"}]})
    made.ask(made.encode("It is sunny.") + made.end)
    first, second = made.turns()
    assert second.prompt_tokens[: len(first.prompt_tokens + first.sampled_tokens)] == (
        first.prompt_tokens + first.sampled_tokens
    ), "the call is trained as it was sampled, so the prompt must show it as it was sampled"
    assert "<tool_response>\nsunny\n</tool_response>" in made.rendering.tokenizer.decode(second.prompt_tokens)


def test_the_id_of_a_call_follows_from_what_was_sampled() -> None:
    def ids(text: str, asked: str = "x") -> list[str]:
        made = episode()
        made.say(asked)
        return [call["id"] for call in answer_to(made, text)["message"]["tool_calls"]]

    assert ids(CALL) == ids(CALL)
    assert len({*ids(CALL + CALL), *ids(CALL, asked="y")}) == 3


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{]</tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "weather"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "Rome"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": NaN}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": 1e999}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": 123456789012345678901234567890}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": ' + 300 * "[" + 300 * "]" + "}}</tool_call>",
        f"{CALL}<tool_call>{{]</tool_call>",
        "<tool_call>" + "[" * 3000 + "</tool_call>",
    ],
)
def test_a_malformed_call_is_the_models_text(text: str) -> None:
    choice = answer_to(episode(), text)
    assert choice["message"]["content"] == text
    assert choice["message"].get("tool_calls") is None
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"tools": None}, CALL),
        ({"tools": []}, CALL),
        ({"tool_choice": "none"}, CALL),
        ({"parallel_tool_calls": False}, CALL + CALL),
    ],
)
def test_a_call_that_was_not_asked_for_is_the_models_text(params: dict[str, Any], text: str) -> None:
    assert answer_to(episode(**params), text)["message"]["content"] == text


def test_the_tools_stay_declared_under_tool_choice_none() -> None:
    offered, unwanted = episode(tool_choice="auto"), episode(tool_choice="none")
    for made in (offered, unwanted):
        made.ask(made.end)
    assert offered.client.prompts == unwanted.client.prompts


def test_several_calls_and_one_of_an_unknown_tool_are_calls() -> None:
    other = CALL.replace("weather", "unknown")
    calls = answer_to(episode(), f"{CALL}\n{other}", parallel_tool_calls=True)["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["weather", "unknown"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tool_choice": "required"}, "tool_choice: only auto and none"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice: only auto and none"),
        ({"tools": {}}, "tools: expected a list"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\]: expected an object of type function"),
        ({"tools": [WEATHER, {"type": "function"}]}, r"tools\[1\]"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, r"tools\[0\].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "f", "description": 3}}]}, "function.description"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
    ],
)
def test_what_cannot_be_offered_is_refused_by_name(params: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_tools(params)


def test_calls_in_the_history_of_a_renderer_without_tools_are_refused() -> None:
    """role_colon would leave them out without a word."""
    made = Episode("role_colon", byte_pair_tokenizer())
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made.messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with pytest.raises(CallError, match="no form for tools"):
        made.ask(made.end)
