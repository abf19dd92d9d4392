"""The game of ``letters`` over bare HTTP, without any SDK."""

from typing import Any

import agentlightning as agl
import httpx


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """Posts the conversation so far, twice."""
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    headers = {"Authorization": f"Bearer {llm.api_key}"}
    async with httpx.AsyncClient(base_url=llm.endpoint, headers=headers, timeout=60) as client:
        for _ in range(2):
            response = await client.post("/chat/completions", json={"model": llm.model, "messages": messages})
            reply = response.raise_for_status().json()["choices"][0]["message"]["content"] or ""
            reward -= sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
    return reward
