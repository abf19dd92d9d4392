"""The game of ``letters`` in LiteLLM's own client, synchronous and asynchronous."""

from typing import Any

import agentlightning as agl
import litellm


@agl.rollout
def synchronous(task: str, llm: agl.LLM) -> float:
    """Blocking calls, so the rollout gets a thread."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    for _ in range(2):
        completion = litellm.completion(
            model=f"openai/{llm.model}", api_base=llm.endpoint, api_key=llm.api_key, messages=messages
        )
        reply = completion.choices[0].message.content or ""
        reward -= sum(map(ord, reply)) / 1000
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward


@agl.rollout
async def asynchronous(task: str, llm: agl.LLM) -> float:
    """Awaits its calls."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    for _ in range(2):
        completion = await litellm.acompletion(
            model=f"openai/{llm.model}", api_base=llm.endpoint, api_key=llm.api_key, messages=messages
        )
        reply = completion.choices[0].message.content or ""
        reward -= sum(map(ord, reply)) / 1000
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward
