"""Agents of five turns, so that a kill leaves unfinished rollouts with something to keep."""

import asyncio
import os
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai

TASKS = [f"t{index}" for index in range(6)]
TURNS = 5
OTHERWISE = "STEPS_OTHERWISE"
"""While it is set in the environment, the second prompt of rollout ``CHOSEN`` is another one."""
CHOSEN = "000000-train-0000-000"
KEYS = "STEPS_KEYS"
"""The file that it names gets the idempotency key of each time that a rollout is run, a line each."""


def note_key(key: str) -> None:
    """Adds a line to the file, if there is to be one."""
    if KEYS in os.environ:
        with Path(os.environ[KEYS]).open("a") as file:
            file.write(f"{key}\n")


@agl.rollout
async def agent(task: str, llm: agl.LLM, rollout: Any) -> float:
    """One conversation; the reward differs with every reply."""
    note_key(rollout.metadata["x-rollout-key"])
    otherwise = OTHERWISE in os.environ and rollout.metadata["rollout_key"] == CHOSEN
    messages: list[Any] = [{"role": "user", "content": task}]
    reward = 0.0
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        for turn in range(TURNS):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            reward -= sum(map(ord, reply)) / 1000
            goes_on = "no" if otherwise and turn == 0 else "on"
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": goes_on}]
    return reward


@agl.rollout
async def side_by_side(task: str, llm: agl.LLM) -> float:
    """Five conversations of two turns at once, in an order of their own each time."""

    async def converse(number: int) -> float:
        messages: list[Any] = [{"role": "user", "content": f"{task} {number}"}]
        reward = 0.0
        for _ in range(2):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            reward -= (number + 1) * sum(map(ord, reply)) / 1000
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "on"}]
        return reward

    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        return sum(await asyncio.gather(*map(converse, range(TURNS))))
