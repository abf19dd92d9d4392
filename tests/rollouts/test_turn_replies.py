"""Laws of replies through the real gateway: none leaves before its turns are on the disk, a kept one is as it was."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.disk import DISK, Disk
from orchestrator.errors import JournalWriteError
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.turns import turn_path
from orchestrator.testing import Fault, FaultyDisk

KEY = RolloutKey(0, "train", 0, 0)
USER = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def http(served: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {served.gateway.key}"}
    async with httpx.AsyncClient(base_url=served.gateway.address, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return turn_path(tmp_path, 0, "train")


async def ask(http: httpx.AsyncClient, attempt_id: str, **body: Any) -> httpx.Response:
    body = {"model": "policy", "messages": USER, **body}
    return await http.post(f"/rollout/turns/attempt/{attempt_id}/v1/chat/completions", json=body)


@pytest.mark.parametrize(
    "body", [{}, {"stop": [" st"], "max_tokens": 64}, {"n": 3}, {"max_tokens": 5, "temperature": 0.5}]
)
async def test_a_kept_reply_is_the_reply_that_was_sampled(
    body: dict[str, Any], served: Any, saying: Callable[..., Any], http: httpx.AsyncClient, path: Path
) -> None:
    client = saying("one stop two")
    await served.publish(client)
    replies, turns = [], []
    for attempt_id in ("first", "again"):
        async with served.capture.storing(path, disk=DISK):
            served.capture.register("turns", attempt_id, KEY, 0)
            reply = (await ask(http, attempt_id, **body)).json()
            turns.append(served.capture.collect("turns", attempt_id))
        replies.append((reply["choices"], reply["usage"]))
    assert len(client.calls) == 1
    assert replies[0] == replies[1]
    assert turns[0] == turns[1] != ()


async def test_no_reply_leaves_before_its_turn_is_on_the_disk_and_the_gateway_serves_others_meanwhile(
    served: Any, http: httpx.AsyncClient, path: Path
) -> None:
    reached, let_go = threading.Event(), threading.Event()

    class HeldDisk(Disk):
        def sync(self, descriptor: int, path: Path) -> None:
            if path.suffix == ".jsonl":
                reached.set()
                assert let_go.wait(timeout=30)
            super().sync(descriptor, path)

    async with served.capture.storing(path, disk=HeldDisk()):
        served.capture.register("turns", "held", KEY, 0)
        asking = asyncio.create_task(ask(http, "held"))
        assert await asyncio.to_thread(reached.wait, 30)
        assert (await http.get("/v1/models")).status_code == 200
        assert not asking.done()
        let_go.set()
        assert (await asking).status_code == 200


async def test_a_turn_that_cannot_be_stored_is_answered_with_an_error(
    served: Any, http: httpx.AsyncClient, path: Path
) -> None:
    async def play() -> None:
        async with served.capture.storing(path, disk=FaultyDisk(Fault.ENOSPC, lambda _step, _path: True)):
            served.capture.register("turns", "full", KEY, 0)
            asking.append(asyncio.create_task(ask(http, "full")))
            await asyncio.shield(asking[0])
            pytest.fail("nobody stopped who plays")

    asking: list[asyncio.Task[httpx.Response]] = []
    with pytest.raises(JournalWriteError, match=os.strerror(errno.ENOSPC)):
        await play()
    reply = await asking[0]
    assert reply.status_code == 500
    assert "could not be stored" in reply.text
