"""Over the responses route: the OpenAI Agents SDK as it comes, in the recipe ``hello``; the plain SDK, in ``letters``.

The Agents SDK raises where max_tokens cuts a reply on this route, so it is given a model that knows when to end.
"""

from typing import Any

import agentlightning as agl
import openai
from agents import Agent, OpenAIProvider, RunConfig, Runner
from openai.types.responses import ResponseTextDeltaEvent

PLAYER = Agent[None](name="player")


@agl.rollout
async def hello(task: str, llm: agl.LLM) -> float:
    """1 when the reply is the digit that was shown, else 0."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        provider = OpenAIProvider(openai_client=client)
        config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
        result = await Runner.run(PLAYER, task, run_config=config)
    return float(result.final_output == task)


@agl.rollout
async def hello_streaming(task: str, llm: agl.LLM) -> float:
    """The same, watched while it goes on."""
    heard = ""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        provider = OpenAIProvider(openai_client=client)
        config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
        result = Runner.run_streamed(PLAYER, task, run_config=config)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                heard += event.data.delta
    return float(heard == task)


@agl.rollout
async def plain(task: str, llm: agl.LLM) -> float:
    """The plain SDK's responses, of which the next request repeats the output as it came."""
    said: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(2):
            response = await client.responses.create(model=llm.model, input=said)
            reward -= sum(map(ord, response.output_text)) / 1000
            said += [*response.output, {"role": "user", "content": "on"}]
    return reward
