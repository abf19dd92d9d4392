"""How many calls a second each gateway answers, and how long one takes, with the client in a process of its own.

``PYTHONPATH=. python tests/benchmarks/gateway.py [slim|llm_proxy ...]`` prints a table. The sampling client answers at
once, so all that is measured is the way there and back: HTTP, key, form, rendering, capture. CPU is the gateway's own
process's for each call: it stays the same on a machine that is busy with something else.
"""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import quantiles
from typing import Any, get_args

from orchestrator.process import importing

SECONDS = 4.0
CONCURRENCIES = (1, 16, 64)
MAX_ATTEMPTS = 4_000
"""Of five calls each: what a call costs grows with the turns that its attempt has already."""
CLIENT = """
import asyncio, itertools, json, sys, time
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
    print(json.dumps({"seconds": time.perf_counter() - start, "latencies": latencies}))

CALLS_OF_AN_ATTEMPT = 5
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
"""
"""Speaks HTTP over plain sockets: a client library would cost more than the gateway that is measured."""


async def measure(kind: str) -> None:
    """Prints a row for each concurrency."""
    # Imported here for start-up time: a mistyped name is answered at once.
    with importing():
        from rollouts.characters import END, VOCABULARY, character_tokenizer
        from tinker_cookbook.renderers import get_renderer

        from orchestrator.rollouts.capture import Capture
        from orchestrator.rollouts.gateway import Gateway
        from orchestrator.rollouts.outcomes import RolloutKey
        from orchestrator.rollouts.provider import Policy, Provider
        from orchestrator.rollouts.rendering import Rendering
        from orchestrator.rollouts.requests import SamplingDefaults
        from orchestrator.testing import FakeSamplingClient

    tokenizer = character_tokenizer()
    capture = Capture(run_seed=0)
    provider = Provider(rendering=Rendering(get_renderer("qwen3_instruct", tokenizer), tokenizer), capture=capture)
    gateway: Any = Gateway(provider=provider, kind=kind)  # type: ignore[arg-type]  # checked by main
    await gateway.start()
    answer = [VOCABULARY["7"], VOCABULARY[END]]
    client = FakeSamplingClient(lambda _prompt, _params: answer)
    await gateway.publish(Policy(client, 0, SamplingDefaults(8), SamplingDefaults(8)))
    for concurrency in CONCURRENCIES:
        attempts = [str(number) for number in range(MAX_ATTEMPTS)]
        for number, attempt_id in enumerate(attempts):
            capture.register("ro", attempt_id, RolloutKey(0, "train", number, 0), 0)
        command = [sys.executable, "-c", CLIENT, gateway.address, gateway.key, str(concurrency), str(SECONDS)]
        began = time.process_time()
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        cpu_seconds = time.process_time() - began
        for attempt_id in attempts:
            capture.collect("ro", attempt_id)
        found = json.loads(done.stdout)
        per_cent = quantiles(found["latencies"], n=100)
        rate = len(found["latencies"]) / found["seconds"]
        figures = (per_cent[49] * 1e3, per_cent[98] * 1e3, cpu_seconds / len(found["latencies"]) * 1e3)
        print(
            f"{kind:<10}{concurrency:>12}{rate:>10.0f}" + "".join(f"{figure:>9.2f}" for figure in figures), flush=True
        )
    await gateway.stop()


def main() -> None:
    """Measures the gateways that the command line names, or both."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from orchestrator.rollouts.gateway import GatewayKind

    kinds = sys.argv[1:] or get_args(GatewayKind)
    if set(kinds) - set(get_args(GatewayKind)):
        sys.exit(f"{' '.join(kinds)}: expected {' or '.join(get_args(GatewayKind))}")
    print(f"{'gateway':<10}{'concurrency':>12}{'calls/s':>10}{'p50 ms':>9}{'p99 ms':>9}{'CPU ms':>9}")
    for kind in kinds:
        asyncio.run(measure(kind))


if __name__ == "__main__":
    main()
