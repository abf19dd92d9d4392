"""Agents that end in every way there is, each task in its own: what is stored of each must not depend on the place."""

import asyncio
from typing import Any

import agentlightning as agl
import openai
from letters import TASKS  # type: ignore[import-not-found]  # beside this file, to who runs it

__all__ = ["TASKS"]


def _end(task: str, llm: agl.LLM, reply: str) -> Any:
    reward = -sum(map(ord, reply)) / 1000
    if task == "t0":
        agl.emit_reward(0.75)
        agl.emit_reward(reward)
        return None
    if task == "t1":
        raise ValueError(f"{llm.endpoint}/chat did not like {llm.api_key}") from KeyError(task)
    if task == "t2":
        return float("nan")
    if task == "t3":
        return "good"
    return reward


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> Any:
    """One call, and the end that goes with the task; t4 never calls."""
    if task == "t4":
        return 1.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return await asyncio.to_thread(_end, task, llm, completion.choices[0].message.content or "")


@agl.rollout
def synchronous(task: str, llm: agl.LLM) -> Any:
    """The same, in a thread without an event loop."""
    if task == "t4":
        return 1.0
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return asyncio.run(asyncio.to_thread(_end, task, llm, completion.choices[0].message.content or ""))
