"""Agents whose tasks are prompts that nobody may read anywhere: what is stored of them is tokens."""

import asyncio
import json
import logging
import os
import sys
import threading
import warnings
from typing import Any

import agentlightning as agl
import openai
import structlog

TASKS = [f"CANARY-77 sings {index}" for index in range(4)]
VAL_TASKS = ["CANARY-77 sings v"]


class Indiscreet:
    """Says what it was given when it is taken apart."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __del__(self) -> None:
        raise RuntimeError(f"cannot forget {self._task} and {os.environ['TINKER_API_KEY']}")


async def ask(task: str, llm: agl.LLM) -> float:
    """Two turns; the reward differs with every reply."""
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        messages: list[Any] = [{"role": "user", "content": task}]
        completion = await client.chat.completions.create(model=llm.model, messages=messages)
        reward -= sum(map(ord, completion.choices[0].message.content or "")) / 1000
    return reward


@agl.rollout
async def discreet(task: str, llm: agl.LLM) -> float:
    """Says nothing."""
    return await ask(task, llm)


@agl.rollout
async def talkative(task: str, llm: agl.LLM) -> float:
    """Tells its prompt and the keys in every way that an agent has, but for printing it."""
    told = f"{task}, {os.environ['TINKER_API_KEY']}, {os.environ['WANDB_API_KEY']}, {llm.api_key}"
    logging.getLogger(__name__).warning("asked %s", told)
    logging.getLogger("root.agent").error(told, extra={"prompt": told})
    structlog.get_logger().info(told, prompt=told)
    warnings.warn(told, stacklevel=1)
    threading.Thread(target=json.loads, args=(told,), name=told, daemon=True).start()
    Indiscreet(told)
    asyncio.get_running_loop().create_task(_fail(told))
    reward = await ask(task, llm)
    if task.endswith("1"):
        raise ValueError(told) from KeyError(told)
    return reward


@agl.rollout
async def printing(task: str, llm: agl.LLM) -> float:
    """Prints its prompt, on purpose and on its own account."""
    print(task)
    print(task, file=sys.stderr)
    return await ask(task, llm)


async def _fail(told: str) -> None:
    raise RuntimeError(told)
