"""Agents of one call to the model, most of which fail, hang or learn nothing after it."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai

VAL_TASKS = ["v0", "v1"]
HARD_TASKS = ["h0", "h1", "h2"]
CHOSEN = "000000-train-0000-001"
"""The rollout that some of these agents treat differently: the second member of the first group of batch 0."""


async def ask(task: str, llm: agl.LLM) -> float:
    """One call; the reward differs with every reply."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return -sum(map(ord, completion.choices[0].message.content or "")) / 1000


@agl.rollout
async def untroubled(task: str, llm: agl.LLM) -> float:
    """Nothing goes wrong."""
    return await ask(task, llm)


@agl.rollout
async def constant(task: str, llm: agl.LLM) -> float:
    """Rewards that are equal within every group, and differ between groups."""
    await ask(task, llm)
    return float(task in {"t3", "t2"})


@agl.rollout
async def failing(task: str, llm: agl.LLM) -> float:
    """Raises, quoting what nobody may read in a log."""
    await ask(task, llm)
    raise RuntimeError("CANARY-77")


@agl.rollout
async def one_eval_fails(task: str, llm: agl.LLM) -> float:
    """Cannot do one of the evaluation tasks."""
    reward = await ask(task, llm)
    if task == "h1":
        raise RuntimeError("not this one")
    return reward


@agl.rollout
async def hanging(task: str, llm: agl.LLM) -> float:
    """Never returns."""
    await ask(task, llm)
    return float(await asyncio.Event().wait())


@agl.rollout
async def one_sleeps(task: str, llm: agl.LLM, rollout: Any) -> float:
    """One rollout sleeps for ever in a worker thread, as an agent does that runs blocking code beside its loop.

    ``players.txt`` tells which processes play, in their order.
    """
    _tell_player()
    if rollout.metadata["rollout_key"] == CHOSEN:
        await asyncio.to_thread(time.sleep, 1_000_000)
    return await ask(task, llm)


def _tell_player() -> None:
    with Path("players.txt").open("a") as players:
        players.write(f"{os.getpid()}\n")


@agl.rollout
async def one_fails_first(task: str, llm: agl.LLM, rollout: Any) -> float:
    """One rollout fails at its first attempt."""
    reward = await ask(task, llm)
    if (rollout.metadata["rollout_key"], rollout.metadata["attempt"]) == (CHOSEN, 0):
        raise ConnectionError("the first attempt fails as planned")
    return reward


@agl.rollout
async def leaving_threads(task: str, llm: agl.LLM) -> float:
    """Leaves a thread and a pool's thread that sleep for ever, both of which the interpreter waits for at its end."""
    reward = await ask(task, llm)
    ThreadPoolExecutor(1).submit(time.sleep, 1_000_000)
    threading.Thread(target=time.sleep, args=(1_000_000,), daemon=False).start()
    return reward


@agl.rollout
async def quoting(task: str, llm: agl.LLM, rollout: Any) -> float:
    """One rollout fails, quoting in each of several errors what nobody may read in a log."""
    reward = await ask(task, llm)
    if rollout.metadata["rollout_key"] == CHOSEN:
        cause = ExceptionGroup("CANARY-77", [ValueError("CANARY-77"), KeyError("CANARY-77")])
        cause.add_note("CANARY-77")
        raise ConnectionError("CANARY-77") from cause
    return reward


@agl.rollout
async def wandering(task: str, llm: agl.LLM) -> float:
    """Changes the working directory of the whole process."""
    reward = await ask(task, llm)
    os.chdir("/")
    return reward
