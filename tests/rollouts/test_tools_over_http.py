"""A tool is offered by an agent, called by the model, run, and answered to the model, over each interface."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import agentlightning as agl
import openai
import pytest
from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, function_tool
from rollouts.calls import Attempt
from rollouts.characters import END, VOCABULARY

from orchestrator.rollouts.outcomes import Outcome, RolloutKey
from orchestrator.testing import FakeSamplingClient

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
CALL = '<tool_call>\n{"name": "double", "arguments": {"number": 21}}\n</tool_call>'


@function_tool
def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


PLAYER = Agent[None](
    name="player", instructions="use the tool", tools=[double], model_settings=ModelSettings(max_tokens=200)
)


@pytest.fixture
def calling(encode: Callable[[str], list[int]], decode: Callable[[Iterable[int]], str]) -> FakeSamplingClient:
    """A sampling client that calls the tool, and once it is told the result says it."""

    def say(prompt: Any, _params: Any) -> list[int]:
        return [*encode("42" if "tool_response" in decode(prompt) else CALL), VOCABULARY[END]]

    return FakeSamplingClient(say)


def check(turns: Any, decode: Callable[[Iterable[int]], str]) -> None:
    """The tool was offered, and the second prompt extends what was sampled by the tool's result."""
    asked, answered = turns
    assert decode(asked.sampled_tokens) == CALL + END
    assert '"double"' in decode(asked.prompt_tokens)
    before = asked.prompt_tokens + asked.sampled_tokens
    assert answered.prompt_tokens[: len(before)] == before
    assert "<tool_response>\n42\n</tool_response>" in decode(answered.prompt_tokens[len(before) :])
    assert decode(answered.sampled_tokens) == "42" + END


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("use_responses", [False, True])
async def test_the_agents_sdk_runs_a_tool_in_the_very_conversation_that_is_trained(
    use_responses: bool, stream: bool, served: Any, calling: Any, decode: Any
) -> None:
    @rollout_agent
    async def agent(task: str, llm: agl.LLM) -> float:
        async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            provider = OpenAIProvider(openai_client=client, use_responses=use_responses)
            config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
            if not stream:
                return float((await Runner.run(PLAYER, task, run_config=config)).final_output)
            result = Runner.run_streamed(PLAYER, task, run_config=config)
            async for _ in result.stream_events():
                pass
            return float(result.final_output)

    await served.publish(calling)
    runner = served.runner(agent)
    key = RolloutKey(0, "train", 0, 0)
    result = await runner.run(key, attempt=0, task="double 21", resources_id=served.resources_id)
    runner.close()
    assert (result.outcome, result.reward, result.error) == (Outcome.SUCCEEDED, 42.0, None)
    check(result.turns, decode)


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_messages_carry_a_tools_call_and_its_result(
    stream: bool, attempt: Attempt, served: Any, calling: Any, decode: Any
) -> None:
    await served.publish(calling)
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    asked: dict[str, Any] = {
        "max_tokens": 200,
        "stream": stream,
        "tools": [{"name": "double", "description": "Twice the number.", "input_schema": schema}],
    }
    messages: list[Any] = [{"role": "user", "content": "double 21"}]
    answer = await attempt.post("messages", messages=messages, **asked)
    assert answer.status_code == 200, answer.text
    if stream:
        events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line[:5] == "data:"]
        starts, deltas, ends = (
            [event for event in events if event["type"] == kind]
            for kind in ("content_block_start", "content_block_delta", "message_delta")
        )
        block = starts[-1]["content_block"] | {"input": json.loads(deltas[-1]["delta"]["partial_json"])}
        stop_reason = ends[0]["delta"]["stop_reason"]
    else:
        (block,), stop_reason = answer.json()["content"], answer.json()["stop_reason"]
    assert (block["type"], block["name"], block["input"], stop_reason) == (
        "tool_use",
        "double",
        {"number": 21},
        "tool_use",
    )
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "42"}
    messages += [{"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    told = await attempt.post("messages", messages=messages, **asked)
    assert told.status_code == 200, told.text
    check(attempt.turns(), decode)
