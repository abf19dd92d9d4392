"""The game of ``letters`` in the plain OpenAI SDK: blocking, with connections that rollouts share, and streamed."""

from typing import Any

import agentlightning as agl
import openai

SHARED = openai.AsyncOpenAI(api_key="each rollout has its own")


@agl.rollout
def synchronous(task: str, llm: agl.LLM) -> float:
    """A function that blocks while the model answers: each rollout has a thread."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(2):
            completion = client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            reward -= sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward


@agl.rollout
async def sharing(task: str, llm: agl.LLM) -> float:
    """The rollout's client is a copy of one that was made once, and uses its connections."""
    client = SHARED.with_options(base_url=llm.endpoint, api_key=llm.api_key)
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    for _ in range(2):
        completion = await client.chat.completions.create(model=llm.model, messages=messages)
        reply = completion.choices[0].message.content or ""
        reward -= sum(map(ord, reply)) / 1000
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward


@agl.rollout
async def streaming(task: str, llm: agl.LLM) -> float:
    """Replies are put together from the chunks they come in."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(2):
            chunks = await client.chat.completions.create(model=llm.model, messages=messages, stream=True)
            reply = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
            reward -= sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward
