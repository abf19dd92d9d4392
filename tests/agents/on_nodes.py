"""The agent of fixture D, which on the nodes of a Ray cluster hangs in the first two plays of one rollout."""

import asyncio
import os
from pathlib import Path
from typing import Any

import agentlightning as agl
from letters import agent as letters_agent  # type: ignore[import-not-found]  # beside this file, to who runs it

CHOSEN = "000001-train-0000-001"
FOLDER, NODE = "TEST_FOLDER", "TEST_NODE"
"""Variables of the nodes: where each play leaves its mark and finds its fifo, and the number of each node."""


@agl.rollout
async def hangs_twice(task: str, llm: agl.LLM, rollout: Any) -> float:
    """The chosen rollout takes its turns and tells the fifo of the play its node, for as long as its process lives."""
    reward = float(await letters_agent(task, llm))
    play = next(filter(_begins, ("first", "second")), None) if rollout.metadata["rollout_key"] == CHOSEN else None
    if play is not None:
        fifo = await asyncio.to_thread((Path(os.environ[FOLDER]) / f"{play}.fifo").open, "w")
        print(os.environ[NODE], file=fifo, flush=True)
        await asyncio.Event().wait()
    return reward


def _begins(play: str) -> bool:
    try:
        (Path(os.environ[FOLDER]) / play).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
