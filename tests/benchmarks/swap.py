"""Publish and swap of a new policy, its save excluded, against the restart of Agent-lightning's proxy.

Ours is what ``PublishModel`` does with a saved sampler: load it, serve it, register the resource. A restart is a stop
and the start of another proxy, because its own ``restart`` does not come back healthy.
"""

import asyncio
import time
from pathlib import Path

from benchmarks.children import forked
from benchmarks.rows import Row, compared
from tinker_cookbook.renderers import get_renderer

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.provider import Policy, Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import SamplingDefaults

ROUNDS = 5
RENDERER = "qwen3_instruct"


def measure(folder: Path) -> list[Row]:
    """One row."""
    ours, theirs = forked(folder / "output.txt", lambda: asyncio.run(_rounds(folder)))
    return [compared("publish + swap", "ms", ours, theirs, "theirs/ours", ratio_at_least=15, ours_at_most=20)]


async def _rounds(folder: Path) -> tuple[list[float], list[float]]:
    service = LocalServiceClient(folder, options=LocalConfig(), renderer_name=RENDERER)
    tokenizer = await service.get_tokenizer_async("tiny")
    training = await service.create_lora_training_client_async("tiny", rank=0)
    rendering = Rendering(get_renderer(RENDERER, tokenizer), tokenizer)
    slim, proxy = (
        Gateway(provider=Provider(rendering=rendering, capture=Capture(run_seed=0)), kind=kind)
        for kind in ("slim", "llm_proxy")
    )
    await slim.start()
    await proxy.start()
    ours, theirs = [], []
    for number in range(ROUNDS):
        saving = await training.save_weights_for_sampler_async(str(number))
        path = (await saving.result_async()).path
        began = time.perf_counter()
        client = await service.create_sampling_client_async(model_path=path)
        await slim.publish(Policy(client, number, SamplingDefaults(8), SamplingDefaults(8)))
        ours.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await proxy.stop()
        await proxy.start()
        theirs.append((time.perf_counter() - began) * 1000)
    await proxy.stop()
    await slim.stop()
    return ours, theirs
