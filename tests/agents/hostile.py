"""An agent whose tasks, texts and errors are markup: whoever shows them must show them as text."""

from typing import Any

import agentlightning as agl
import openai

MARKUP = "</script><img src=x onerror=alert(1)>"
ERROR = "</pre><video autoplay>"
TASKS = [f"{MARKUP}t{index}" for index in range(6)]
VAL_TASKS = [f"{MARKUP}v{index}" for index in range(2)]
FAILS = "000000-train-0001-001"
"""The rollout that raises."""


@agl.rollout
async def agent(task: str, llm: agl.LLM, rollout: Any) -> float:
    """Two turns; rewards letters early in the alphabet; one rollout fails."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(2):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            reward -= sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    if rollout.metadata["rollout_key"] == FAILS:
        raise ValueError(ERROR)
    return reward
