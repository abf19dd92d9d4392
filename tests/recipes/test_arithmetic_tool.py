"""The loop of tool calls: what each way of answering earns, what the model is sent, and what a warm start shows."""

from typing import Any

import pytest
from tinker_cookbook.renderers import get_renderer

from orchestrator.backends.local.tiny import make_tokenizer
from orchestrator.backends.local.warm_start import _examples
from orchestrator.recipes.arithmetic_tool import CALCULATOR, calculate, demonstrations
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import read_messages
from orchestrator.rollouts.tools import read_tools
from orchestrator.testing.scripted import scripted_llm

RIGHT, WRONG = [("calculator", {"expression": "12*3"})], [("calculator", {"expression": "12*4"})]


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ((RIGHT, "36"), 1.0),
        (("36",), 1.0),
        ((RIGHT, "48"), 0.25),
        ((WRONG, "48"), 0.0),
        (("48",), 0.0),
        ((RIGHT, "so"), -0.25),
        ((RIGHT, RIGHT), -0.25),
        (([("calculator", {})], "36"), 1.0),
    ],
)
async def test_a_right_answer_earns_one_and_asking_well_a_quarter(replies: tuple[Any, ...], reward: float) -> None:
    agent = load_agent("orchestrator.recipes.arithmetic_tool:agent")
    with scripted_llm(*replies) as model:
        assert await agent("12*3", model.llm) == reward
    assert len(model.requests) == len(replies)
    assert all(request["tools"] == [CALCULATOR] for request in model.requests)
    if replies == (RIGHT, "36"):
        call, result = model.requests[-1]["messages"][-2:]
        assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "36"}


@pytest.mark.parametrize(("expression", "result"), [("12*6", "72"), ("12*x", "error"), ("", "error"), (None, "error")])
def test_the_calculator_multiplies_and_says_where_it_cannot(expression: Any, result: str) -> None:
    assert calculate(expression) == result


def test_the_warm_start_shows_conversations_as_the_gateway_renders_them() -> None:
    """Else the model would have learned tool calls behind a declaration that it never sees again."""
    tokenizer = make_tokenizer()
    renderer = get_renderer("qwen3_instruct", tokenizer)
    transcript = next(each for each in demonstrations() if isinstance(each, dict) and len(each["messages"]) == 4)
    (example,) = _examples(renderer, transcript)
    prompt = Rendering(renderer, tokenizer).prompt_tokens(
        read_messages(transcript["messages"][:-1]), read_tools({"tools": transcript["tools"]})
    )
    assert tuple(example.tokens[: len(prompt)].tolist()) == prompt
    learned = tokenizer.decode(example.targets[example.inputs["weights"] > 0].tolist())
    call = transcript["messages"][1]["tool_calls"][0]["function"]
    assert call["arguments"] in learned
    assert learned.endswith(f"{transcript['messages'][3]['content']}<|im_end|>")
