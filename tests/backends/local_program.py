"""Trains the built-in model for some batches and tells every sampled token, logprob and weight; runs as a process.

Arguments: storage, cache, PyTorch threads, where to begin, where to end. Beginning later than 0, it restores the
checkpoint of that batch. One line a batch goes to standard output.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import tinker
from tinker import types

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig

PROMPTS = [[10 + index] * (5 + index) for index in range(12)]


def newest_checkpoint(storage: Path, batch: int) -> str:
    return str(max(storage.glob(f"*/weights/*-{batch}")))


async def train(storage: Path, cache: Path, num_threads: int, begin: int, end: int) -> AsyncIterator[str]:
    """One JSON line a batch."""
    options = LocalConfig(num_threads=num_threads)
    service = LocalServiceClient(storage, options=options, renderer_name="qwen3_instruct", cache=cache)
    if begin == 0:
        client = await service.create_lora_training_client_async("tiny", rank=4, seed=1)
    else:
        newest = newest_checkpoint(storage, begin)
        client = await service.create_training_client_from_state_with_optimizer_async(newest)
    for batch in range(begin, end):
        path = (await (await client.save_weights_for_sampler_async(f"{begin}-{batch}")).result_async()).path
        sampler = await service.create_sampling_client_async(path)
        responses = await asyncio.gather(
            *(
                sampler.sample_async(
                    types.ModelInput.from_ints(prompt), 2, types.SamplingParams(max_tokens=8, seed=100 * batch + index)
                )
                for index, prompt in enumerate(PROMPTS)
            )
        )
        data = []
        for prompt, response in zip(PROMPTS, responses, strict=True):
            for sequence in response.sequences:
                logprobs = [0.0] * (len(prompt) - 1) + list(sequence.logprobs or [])
                advantages = [0.0] * (len(prompt) - 1) + [float(token % 3 - 1) for token in sequence.tokens]
                tokens = prompt + sequence.tokens
                data.append(
                    tinker.Datum(
                        model_input=types.ModelInput.from_ints(tokens[:-1]),
                        loss_fn_inputs={
                            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64"),
                            "logprobs": types.TensorData(data=logprobs, dtype="float32"),
                            "advantages": types.TensorData(data=advantages, dtype="float32"),
                        },
                    )
                )
        await client.forward_backward_async(data, "ppo")
        await client.optim_step_async(types.AdamParams(learning_rate=1e-2, eps=1e-8))
        saved = (await (await client.save_state_async(f"{begin}-{batch + 1}")).result_async()).path
        directory = storage.joinpath(*saved.removeprefix("local://").split("/"))
        weights = hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()
        sampled = [[sequence.tokens, sequence.logprobs] for response in responses for sequence in response.sequences]
        yield json.dumps({"batch": batch, "sampled": sampled, "weights": weights})
    service.close()


async def main(storage: str, cache: str, *numbers: str) -> None:
    async for line in train(Path(storage), Path(cache), *map(int, numbers)):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
