"""An agent that a resume cannot bring back: its reward depends on how often this very process has played."""

import itertools

import agentlightning as agl
import openai

TASKS = [{"id": f"t{number}"} for number in range(6)]
_plays = itertools.count()


@agl.rollout
async def agent(task: dict[str, str], llm: agl.LLM) -> float:
    """One call, and a reward that grows with every play."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task["id"]}])
    return float(next(_plays))


@agl.rollout
async def content(task: dict[str, str], llm: agl.LLM) -> float:
    """One call, and the same reward whatever comes of it."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task["id"]}])
    return 1.0
