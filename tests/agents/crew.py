"""A rollout by a crew that lives in another Python environment, behind ``crew_service``."""

import os

import agentlightning as agl
import httpx


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """Sends the crew its task, and where this rollout's model is; rewards letters early in the alphabet."""
    asked = {"task": task, "model": llm.model, "endpoint": llm.endpoint, "api_key": llm.api_key}
    async with httpx.AsyncClient(timeout=600) as client:
        answered = await client.post(os.environ["CREW_SERVICE"], json=asked)
    return -sum(map(ord, answered.raise_for_status().json()["answer"])) / 1000
