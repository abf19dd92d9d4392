"""The agent and tasks of the whole-program tests: fixture D, and a reward that differs with every reply."""

from typing import Any

import agentlightning as agl
import openai

TASKS = [f"t{index}" for index in range(6)]


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """Two turns, so that a rollout has a middle; rewards letters early in the alphabet."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(2):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            reward -= sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward
