"""The game of ``letters`` in the OpenAI Agents SDK, over the chat-completions route.

The SDK's agent is made once, as in any program. Where its model is comes with the configuration of each run, for the
SDK's own defaults (``set_default_openai_client``) are one for the whole process and would mix up rollouts.
"""

import agentlightning as agl
import openai
from agents import Agent, OpenAIProvider, RunConfig, Runner, TResponseInputItem
from openai.types.responses import ResponseTextDeltaEvent

PLAYER = Agent[None](name="player")


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """Two runs of the SDK's loop, the second of which continues the first."""
    said: list[TResponseInputItem] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=False)
        config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
        for _ in range(2):
            result = await Runner.run(PLAYER, said, run_config=config)
            reward -= sum(map(ord, result.final_output)) / 1000
            said = [*result.to_input_list(), {"role": "user", "content": "on"}]
    return reward


@agl.rollout
async def streaming(task: str, llm: agl.LLM) -> float:
    """Each run is watched while it goes on; the connections are those that the SDK shares between all runs."""
    provider = OpenAIProvider(base_url=llm.endpoint, api_key=llm.api_key, use_responses=False)
    config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
    said: list[TResponseInputItem] = [{"role": "user", "content": task}]
    reward = 0.0
    for _ in range(2):
        result = Runner.run_streamed(PLAYER, said, run_config=config)
        heard = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
                heard += event.data.delta
        reward -= sum(map(ord, heard)) / 1000
        said = [*result.to_input_list(), {"role": "user", "content": "on"}]
    return reward


@agl.rollout
def synchronous(task: str, llm: agl.LLM) -> float:
    """In a thread, with a client of its own: the one that the SDK shares serves one event loop, not one a thread."""
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key)
    provider = OpenAIProvider(openai_client=client, use_responses=False)
    config = RunConfig(model=llm.model, model_provider=provider, tracing_disabled=True)
    said: list[TResponseInputItem] = [{"role": "user", "content": task}]
    reward = 0.0
    for _ in range(2):
        result = Runner.run_sync(PLAYER, said, run_config=config)
        reward -= sum(map(ord, result.final_output)) / 1000
        said = [*result.to_input_list(), {"role": "user", "content": "on"}]
    return reward
