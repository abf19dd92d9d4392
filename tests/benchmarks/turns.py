"""What storing each turn adds to a call: run ``python tests/benchmarks/turns.py [FOLDER]`` on the disk that matters.

A call here is ``begin``, ``record`` and the wait for its turn to be durable, of 2,000 sampled tokens after a prompt of
as many, on one event loop as in the gateway. It is compared with the same calls with nothing stored, and with the
disk's own write and sync of such a line.
"""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from orchestrator.disk import DISK
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import RolloutKey, Turn
from orchestrator.rollouts.turns import AnsweredCall, turn_path

TOKENS = 2_000
CALLS = 1_024
IDS = ("rollout", "attempt")


def turn(number: int) -> Turn:
    """Of its own prompt, with logprobs of seven digits as a float32 gives them."""
    prompt = (*range(100_000, 100_000 + TOKENS - 1), number)
    return Turn(prompt, tuple(range(50_000, 50_000 + TOKENS)), (-0.12345679,) * TOKENS, 0, "stop")


async def call_seconds(capture: Capture, concurrency: int) -> tuple[list[float], float]:
    """How long each of the calls took, and the longest time that the event loop did not come round."""
    capture.register(*IDS, RolloutKey(0, "train", 0, 0), 0)
    turns = iter([turn(number) for number in range(CALLS)])
    seconds: list[float] = []

    async def ask() -> None:
        for each in turns:
            began = time.perf_counter()
            call = capture.begin(*IDS, each.prompt_tokens)
            stored = None if call is None else capture.record(call, [each])
            if stored is None:
                raise RuntimeError("the attempt is over")
            await asyncio.wrap_future(stored)
            seconds.append(time.perf_counter() - began)

    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(ask() for _ in range(concurrency)))
    watching.cancel()
    capture.collect(*IDS)
    return seconds, longest


def sync_seconds(folder: Path) -> list[float]:
    """The disk's own part: one write and one sync a line, by itself."""
    key = RolloutKey(0, "train", 0, 0)
    line = AnsweredCall(key, 0, turn(0).prompt_tokens, 0, "{}", False, (turn(0),)).to_json().encode()
    seconds = []
    descriptor = os.open(folder / "line", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for _ in range(CALLS // 4):
        began = time.perf_counter()
        os.write(descriptor, line)
        os.fsync(descriptor)
        seconds.append(time.perf_counter() - began)
    os.close(descriptor)
    print(f"a line has {len(line):,} bytes")
    return seconds


def told(seconds: list[float]) -> str:
    """Median and 99th percentile in milliseconds."""
    return f"p50 {1000 * median(seconds):6.2f} ms   p99 {1000 * quantiles(seconds, n=100)[98]:6.2f} ms"


async def measure(folder: Path) -> None:
    """Prints it all."""
    print(f"write and sync alone          {told(sync_seconds(folder))}")
    for concurrency in (1, 64):
        capture = Capture(run_seed=0)
        bare, _ = await call_seconds(capture, concurrency)
        async with capture.storing(turn_path(folder, 0, "train"), disk=DISK):
            began = time.perf_counter()
            stored, longest = await call_seconds(capture, concurrency)
            elapsed = time.perf_counter() - began
        turn_path(folder, 0, "train").unlink()
        print(f"concurrency {concurrency:2}, not stored    {told(bare)}")
        print(
            f"concurrency {concurrency:2}, stored        {told(stored)}   {CALLS / elapsed:,.0f} calls/s, "
            f"event loop held at most {1000 * longest:.1f} ms"
        )


def main() -> None:
    """In a temporary folder of the one given, or of the system's."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        asyncio.run(measure(Path(folder)))


if __name__ == "__main__":
    main()
