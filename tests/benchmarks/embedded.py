"""The embedded backend against transformers' ``generate`` and a plain PyTorch training loop, on the built-in model.

All on one thread. Sampling is of 32 prompts that arrive as 32 calls; ``generate`` gets them as one batch and returns no
logprobs. Training is forward, loss, backward and Adam; the plain loop is told nothing but padded tokens.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.children import forked
from benchmarks.rows import Row, compared
from tinker import types
from transformers import AutoModelForCausalLM

from orchestrator.backends.local.service import BASE, LocalServiceClient
from orchestrator.config import TINY, LocalConfig

ROUNDS, ROWS, PROMPT_TOKENS, NEW_TOKENS = 5, 32, 24, 64
TRAIN_TOKENS, TRAIN_STEPS = 64, 12
LEARNING_RATE = 1e-4


def measure(folder: Path) -> list[Row]:
    """Two rows."""
    sampled, generated = forked(folder / "output.txt", _sampling, folder / "sampling")
    trained, plain = forked(folder / "output.txt", _training, folder / "training")
    speeds: list[dict[str, Any]] = [{"ratio_at_least": 2}, {"ratio_at_least": 0.9}]
    return [
        compared(f"sampling, batch {ROWS}", "tokens/s", sampled, generated, "ours/theirs", **speeds[0]),
        compared("training", "tokens/s", trained, plain, "ours/theirs", **speeds[1]),
    ]


def _service(folder: Path) -> LocalServiceClient:
    return LocalServiceClient(folder, options=LocalConfig(), renderer_name="qwen3_instruct")


def _model(folder: Path) -> Any:
    """The same built-in model, as transformers loads it; its own thread count is ours."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder / BASE / TINY)


def _tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 99, (rows, length), generator=torch.Generator().manual_seed(0))


def _sampling(folder: Path) -> tuple[list[float], list[float]]:
    return asyncio.run(_sampled(folder))


async def _sampled(folder: Path) -> tuple[list[float], list[float]]:
    service = _service(folder)
    client = await service.create_sampling_client_async(base_model=TINY)
    model, prompts = _model(folder), _tokens(ROWS, PROMPT_TOKENS)
    ours, theirs = [], []
    for number in range(ROUNDS + 1):
        began = time.perf_counter()
        params = types.SamplingParams(max_tokens=NEW_TOKENS, temperature=1.0, seed=number, stop=[])
        asked = [client.sample_async(types.ModelInput.from_ints(row), 1, params) for row in prompts.tolist()]
        replies = await asyncio.gather(*asked)
        assert all(len(reply.sequences[0].tokens) == NEW_TOKENS for reply in replies)
        ours.append(ROWS * NEW_TOKENS / (time.perf_counter() - began))
        began = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(
                prompts, attention_mask=torch.ones_like(prompts), do_sample=True, max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS, top_k=0, pad_token_id=0,
            )  # fmt: skip
        assert found.shape == (ROWS, PROMPT_TOKENS + NEW_TOKENS)
        theirs.append(ROWS * NEW_TOKENS / (time.perf_counter() - began))
    return ours[1:], theirs[1:]  # the first of both warms up


def _training(folder: Path) -> tuple[list[float], list[float]]:
    return asyncio.run(_trained(folder))


async def _trained(folder: Path) -> tuple[list[float], list[float]]:
    service = _service(folder)
    client = await service.create_lora_training_client_async(TINY, rank=0)
    model, tokens = _model(folder).train(), _tokens(ROWS, TRAIN_TOKENS + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(row.tolist()),
            loss_fn_inputs={
                "target_tokens": types.TensorData.from_torch(target),
                "weights": types.TensorData.from_torch(torch.ones(TRAIN_TOKENS)),
            },
        )
        for row, target in zip(inputs, targets, strict=True)
    ]
    ours, theirs = [], []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        for _ in range(TRAIN_STEPS):
            passed = await client.forward_backward_async(data, "cross_entropy")
            stepped = await client.optim_step_async(types.AdamParams(learning_rate=LEARNING_RATE))
            await passed.result_async()
            await stepped.result_async()
        ours.append(TRAIN_STEPS * ROWS * TRAIN_TOKENS / (time.perf_counter() - began))
        began = time.perf_counter()
        for _ in range(TRAIN_STEPS):
            logits = model(inputs, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
        theirs.append(TRAIN_STEPS * ROWS * TRAIN_TOKENS / (time.perf_counter() - began))
    return ours[1:], theirs[1:]
