"""The agent of fixture D, which at one rollout ends its worker or hangs in it; marks in the folder tell that it did."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
from letters import agent as letters_agent  # type: ignore[import-not-found]  # beside this file, to who runs it

CHOSEN = "000001-train-0000-001"
STARTED = Path("started.fifo")
"""Who reads it waits until the chosen rollout has taken its first turn."""


async def _first_turn(task: str, llm: agl.LLM) -> None:
    """The first call that fixture D's agent makes, too."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])


def _first_time() -> bool:
    try:
        Path("played").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@agl.rollout
async def dies_once(task: str, llm: agl.LLM, rollout: Any) -> float:
    """The chosen rollout's first play kills its process after one turn."""
    if rollout.metadata["rollout_key"] == CHOSEN and _first_time():
        await _first_turn(task, llm)
        os.kill(os.getpid(), signal.SIGKILL)
    return float(await letters_agent(task, llm))


@agl.rollout
async def dies_always(task: str, llm: agl.LLM, rollout: Any) -> float:
    """The chosen rollout kills every process that plays it."""
    if rollout.metadata["rollout_key"] == CHOSEN:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(await letters_agent(task, llm))


@agl.rollout
async def hangs_once(task: str, llm: agl.LLM, rollout: Any) -> float:
    """The chosen rollout's first play hangs after one turn, and says so."""
    if rollout.metadata["rollout_key"] == CHOSEN and _first_time():
        await _first_turn(task, llm)
        await asyncio.to_thread(STARTED.write_text, "one turn is taken")
        await asyncio.Event().wait()
    return float(await letters_agent(task, llm))


@agl.rollout
async def pauses_once(task: str, llm: agl.LLM, rollout: Any) -> float:
    """The chosen rollout's first play says that it has begun, and waits to be told to go on."""
    if rollout.metadata["rollout_key"] == CHOSEN and _first_time():
        os.mkfifo("go_on.fifo")
        await asyncio.to_thread(STARTED.write_text, "one turn is taken")
        await asyncio.to_thread(Path("go_on.fifo").read_text)
    return float(await letters_agent(task, llm))
