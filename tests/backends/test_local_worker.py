import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.backends.local.worker import StoppedError, Worker


@dataclass(eq=False)
class Waiting:
    """A row that says no more than with which it may share a micro-batch."""

    key: str
    done: Future[str] = field(default_factory=Future)


def idle_worker() -> Worker[Waiting]:
    return Worker(lambda rows, gave_up: [row.key for row in rows], rows=4, num_threads=1)


async def test_an_error_goes_to_the_request_that_made_it_and_the_next_one_runs() -> None:
    worker = idle_worker()

    def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await worker.run(fail)
    assert await worker.run(lambda: 7) == 7
    worker.close()


async def test_closing_fails_what_waits_and_refuses_what_comes() -> None:
    worker = idle_worker()
    began, release = threading.Event(), threading.Event()

    def hold() -> str:
        began.set()
        release.wait(10)
        return "held"

    held = worker.submit(hold)
    waiting = worker.submit(lambda: None)
    began.wait(10)
    closing = threading.Thread(target=worker.close)
    closing.start()
    while True:
        try:
            worker.submit(lambda: None)
        except StoppedError:
            break
    release.set()
    closing.join()
    assert held.result(timeout=10) == "held"
    with pytest.raises(StoppedError):
        waiting.result(timeout=10)


async def test_a_reply_cut_short_by_closing_is_never_taken_for_a_reply() -> None:
    began = threading.Event()

    def sample(rows: list[Waiting], gave_up: Callable[[], bool]) -> list[str]:
        began.set()
        while not gave_up():
            pass
        return ["cut short" for _ in rows]

    worker: Worker[Waiting] = Worker(sample, rows=4, num_threads=1)
    row = Waiting("a")
    worker.submit_rows([row])
    began.wait(10)
    worker.close()
    with pytest.raises(StoppedError):
        row.done.result(timeout=10)


def test_only_the_row_that_fails_a_micro_batch_fails() -> None:
    good, bad = [Waiting("a"), Waiting("a")], Waiting("a")
    sizes: list[int] = []

    def sample(rows: list[Waiting], gave_up: Callable[[], bool]) -> list[str]:
        sizes.append(len(rows))
        if bad in rows:
            raise ValueError("mine")
        return [row.key for row in rows]

    worker: Worker[Waiting] = Worker(sample, rows=4, num_threads=1)
    worker.submit_rows([good[0], bad, good[1]])
    assert [row.done.result(timeout=10) for row in good] == ["a", "a"]
    with pytest.raises(ValueError, match="mine"):
        bad.done.result(timeout=10)
    assert sizes == [3, 1, 1, 1]
    worker.close()


async def test_waiting_samples_share_micro_batches_and_training_goes_first() -> None:
    sizes: list[int] = []
    order: list[str] = []
    began, release = threading.Event(), threading.Event()

    def sample(rows: list[Waiting], gave_up: Callable[[], bool]) -> list[str]:
        sizes.append(len(rows))
        order.append(rows[0].key)
        return [row.key for row in rows]

    def hold() -> None:
        began.set()
        release.wait(10)

    worker: Worker[Waiting] = Worker(sample, rows=4, num_threads=1)
    worker.submit(hold)
    began.wait(10)
    rows = [Waiting(key) for key in "abaaaabbc"]
    worker.submit_rows(rows)
    assert rows[-1].done.cancel()
    worker.submit(lambda: order.append("training"))
    release.set()
    assert "".join(row.done.result(timeout=10) for row in rows[:-1]) == "abaaaabb"
    assert (sizes, order) == ([4, 3, 1], ["training", "a", "b", "a"])
    worker.close()


EXIT_WHILE_SAMPLING = """
import asyncio, sys, threading
from pathlib import Path
from tinker import types
from orchestrator.backends.local import service as local
from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig

sampling = threading.Event()
sample = local.sample

def observed_sample(*arguments, **options):
    sampling.set()
    return sample(*arguments, **options)

local.sample = observed_sample

async def main():
    root = Path(sys.argv[1])
    service = LocalServiceClient(root / "s", options=LocalConfig(), renderer_name="qwen3_instruct", cache=root / "c")
    client = await service.create_sampling_client_async(base_model="tiny")
    prompt = types.ModelInput.from_ints([10, 11])
    asyncio.ensure_future(client.sample_async(prompt, 1, types.SamplingParams(max_tokens=4000, stop=[])))
    await asyncio.to_thread(sampling.wait)
    print("leaving", flush=True)

asyncio.run(main())
"""


def test_a_process_ends_at_once_and_cleanly_while_a_sample_is_under_way(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", EXIT_WHILE_SAMPLING, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "leaving" not in process.stdout.readline():
        pass
    _, errors = process.communicate(timeout=5)
    assert process.returncode == 0, errors
