"""Calls a second, and a call's time alone, of our gateway against Agent-lightning's LLMProxy, in one process.

The sampling client answers at once and the caller is a process of its own, so what is measured is the way there and
back: HTTP, key, form, rendering, capture. The caller speaks HTTP over plain sockets: a client library would cost more
than the gateway.
"""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.children import forked
from benchmarks.rows import Row, compared
from rollouts.characters import END, VOCABULARY, character_tokenizer
from tinker_cookbook.renderers import get_renderer

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.gateway import Gateway, GatewayKind
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.provider import Policy, Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import SamplingDefaults
from orchestrator.testing import FakeSamplingClient

ROUNDS, SECONDS = 5, 1.2
CONCURRENCIES = (1, 16, 64)
KINDS: tuple[GatewayKind, ...] = ("slim", "llm_proxy")
MAX_ATTEMPTS = 2_000
"""Of five calls each, as an agent makes them."""
CLIENT = """
import asyncio, itertools, json, sys, time
from statistics import median
from urllib.parse import urlsplit

async def main(address, key, concurrency, seconds):
    place = urlsplit(address)
    body = json.dumps({
        "model": "policy", "messages": [{"role": "user", "content": "guess a number from 1 to 7"}], "max_tokens": 8
    })
    head = (
        f"/v1/chat/completions HTTP/1.1\\r\\nHost: {place.netloc}\\r\\n"
        f"Authorization: Bearer {key}\\r\\nContent-Type: application/json\\r\\nContent-Length: {len(body)}"
    )
    numbers = itertools.count()

    async def call(reader, writer):
        attempt = next(numbers) // CALLS_OF_AN_ATTEMPT
        writer.write(f"POST /rollout/ro/attempt/{attempt}{head}\\r\\n\\r\\n{body}".encode())
        answer = await reader.readuntil(b"\\r\\n\\r\\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        length = answer.lower().split(b"content-length:")[1].split(b"\\r\\n")[0]
        await reader.readexactly(int(length))

    connections = [await asyncio.open_connection(place.hostname, place.port) for _ in range(concurrency)]
    for connection in connections:
        await call(*connection)
    latencies, start = [], time.perf_counter()

    async def calls(connection):
        while (began := time.perf_counter()) < start + seconds:
            await call(*connection)
            latencies.append(time.perf_counter() - began)

    await asyncio.gather(*map(calls, connections))
    print(json.dumps([len(latencies) / (time.perf_counter() - start), median(latencies) * 1000]))

CALLS_OF_AN_ATTEMPT = 5
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
"""


def measure(folder: Path) -> list[Row]:
    """Three rows."""
    found: dict[tuple[str, int], list[list[float]]] = forked(folder / "output.txt", _rounds)

    def column(index: int, kind: GatewayKind, concurrency: int) -> list[float]:
        return [figures[index] for figures in found[kind, concurrency]]

    rates = [
        compared(
            f"gateway, {concurrency} at once",
            "calls/s",
            column(0, "slim", concurrency),
            column(0, "llm_proxy", concurrency),
            "ours/theirs",
            ratio_at_least=5,
        )
        for concurrency in CONCURRENCIES[1:]
    ]
    alone = column(1, "slim", 1), column(1, "llm_proxy", 1)
    return [compared("gateway, p50 of one", "ms", *alone, "ours/theirs", ratio_at_most=0.25), *rates]


def _rounds() -> dict[tuple[str, int], list[list[float]]]:
    return asyncio.run(_measured())


async def _measured() -> dict[tuple[str, int], list[list[float]]]:
    """Calls a second and p50 in ms of each round, by gateway and concurrency; both stand all the time."""
    tokenizer = character_tokenizer()
    answer = [VOCABULARY["7"], VOCABULARY[END]]
    client = FakeSamplingClient(lambda _prompt, _params: answer)
    gateways: dict[str, tuple[Capture, Gateway]] = {}
    for kind in KINDS:
        capture = Capture(run_seed=0)
        rendering = Rendering(get_renderer("qwen3_instruct", tokenizer), tokenizer)
        gateways[kind] = capture, Gateway(provider=Provider(rendering=rendering, capture=capture), kind=kind)
        await gateways[kind][1].start()
        await gateways[kind][1].publish(Policy(client, 0, SamplingDefaults(8), SamplingDefaults(8)))
    found: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(ROUNDS):
        for concurrency in CONCURRENCIES:
            for name, gateway in gateways.items():
                found.setdefault((name, concurrency), []).append(await _called(*gateway, concurrency))
                client.calls.clear()
    return found


async def _called(capture: Capture, gateway: Any, concurrency: int) -> list[float]:
    attempts = [str(number) for number in range(MAX_ATTEMPTS)]
    for number, attempt_id in enumerate(attempts):
        capture.register("ro", attempt_id, RolloutKey(0, "train", number, 0), 0)
    command = [sys.executable, "-c", CLIENT, gateway.address, gateway.key, str(concurrency), str(SECONDS)]
    done = await asyncio.to_thread(subprocess.run, command, stdout=subprocess.PIPE, text=True, check=True)
    for attempt_id in attempts:
        capture.collect("ro", attempt_id)
    figures: list[float] = json.loads(done.stdout)
    return figures
