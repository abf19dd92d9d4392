"""The benchmarks' own agent: three turns whatever is answered, and its own time told apart from its calls'."""

import time
from typing import Any

import agentlightning as agl
import openai

from orchestrator.recipes.guess_number import tls_context

TURNS = 3

SPANS: list[tuple[float, float]] = []
"""From when to when, in ``time.perf_counter()`` seconds, an agent of this process ran, its model calls left out."""


def tasks() -> list[dict[str, int]]:
    """More than a batch of any benchmark needs."""
    return [{"number": number} for number in range(4096)]


@agl.rollout  # type: ignore[untyped-decorator]  # Agent-lightning has no types
async def agent(task: dict[str, int], llm: agl.LLM) -> float:
    """Rewards digits of the task's parity, so that the rewards of a group differ."""
    began, reward = time.perf_counter(), 0.0
    messages: list[Any] = [{"role": "user", "content": "guess"}]
    http_client = openai.DefaultAsyncHttpxClient(verify=tls_context())
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http_client) as client:
        for _ in range(TURNS):
            SPANS.append((began, time.perf_counter()))
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            began = time.perf_counter()
            reply = completion.choices[0].message.content or ""
            reward += reply.isdecimal() and reply.isascii() and int(reply) % 2 == task["number"] % 2
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "higher"}]
    SPANS.append((began, time.perf_counter()))
    return reward / TURNS
