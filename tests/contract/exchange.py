"""What the contract's tests ask of a backend again and again."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinker
from tinker import types

from orchestrator.backends.surface import SamplingClient, ServiceClient, TrainingClient

PROMPT = [9, 12, 7, 20, 15, 11, 8, 17]
SEQUENCES = ([9, 12, 7, 20, 15, 11, 8, 17, 13], [22, 7, 9, 9, 14, 18])
"""Ids that any vocabulary has; of different lengths."""
LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo")
CLOSE = 2e-3
"""How far two logprobs of one token may be apart that were computed in different company, in nats."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Party:
    """A backend, and what is trained there."""

    service: ServiceClient
    base_model: str
    lora_rank: int

    async def fresh(self) -> TrainingClient:
        """A new adapter."""
        return await self.service.create_lora_training_client_async(self.base_model, rank=self.lora_rank, seed=3)

    async def trained(self) -> TrainingClient:
        """A new adapter after one step, so that it is not the base model."""
        client = await self.fresh()
        await step(client, datums("cross_entropy"))
        return client

    async def sampler(self, client: TrainingClient, name: str | None = None) -> SamplingClient:
        """Samples from the weights that ``client`` has now."""
        saving = await client.save_weights_for_sampler_async(name or unused_name())
        return await self.service.create_sampling_client_async((await saving.result_async()).path)


def unused_name() -> str:
    """The name of a checkpoint."""
    return f"contract-{next(_numbers):03}"


def datums(
    loss_fn: str,
    *,
    sequences: Sequence[Sequence[int]] = SEQUENCES,
    weight: float = 1.0,
    logprobs: Sequence[Sequence[float]] | None = None,
) -> list[tinker.Datum]:
    """Each sequence as a datum: its tokens shifted by one, each of weight or advantage ``weight``.

    ``logprobs`` are those of the sampling policy for the ratio; default: -2 each.
    """
    found = []
    for index, sequence in enumerate(sequences):
        size = len(sequence) - 1
        inputs: dict[str, Any] = {"target_tokens": tensor(sequence[1:], "int64")}
        if loss_fn == "cross_entropy":
            inputs["weights"] = tensor([weight] * size)
        else:
            inputs["logprobs"] = tensor([-2.0] * size if logprobs is None else logprobs[index])
            inputs["advantages"] = tensor([weight] * size)
        found.append(tinker.Datum(model_input=tokens(sequence[:-1]), loss_fn_inputs=inputs))
    return found


def tensor(data: Sequence[float], dtype: Any = "float32") -> tinker.TensorData:
    return tinker.TensorData(data=list(data), dtype=dtype, shape=[len(data)])


def tokens(ids: Sequence[int]) -> types.ModelInput:
    return types.ModelInput.from_ints(list(ids))


async def forward_backward(client: TrainingClient, data: list[tinker.Datum], loss_fn: Any) -> list[list[float]]:
    """The logprobs of the target tokens, by datum; gradients are left behind."""
    return logprobs_of(await (await client.forward_backward_async(data, loss_fn)).result_async())


def logprobs_of(output: types.ForwardBackwardOutput) -> list[list[float]]:
    return [list(datum["logprobs"].data) for datum in output.loss_fn_outputs]


async def step(
    client: TrainingClient,
    data: list[tinker.Datum],
    loss_fn: Any = "cross_entropy",
    *,
    learning_rate: float = 0.02,
    eps: float = 1e-8,
) -> list[list[float]]:
    """One train step, enqueued as a run enqueues it; the logprobs before it."""
    passing = await client.forward_backward_async(data, loss_fn)
    stepping = await client.optim_step_async(types.AdamParams(learning_rate=learning_rate, eps=eps))
    logprobs = logprobs_of(await passing.result_async())
    await stepping.result_async()
    return logprobs


async def score(sampler: SamplingClient, sequences: Sequence[Sequence[int]] = SEQUENCES) -> list[list[float]]:
    """The logprobs of each sequence's tokens but the first, given those before."""
    scored = []
    for sequence in sequences:
        first, *rest = await sampler.compute_logprobs_async(tokens(sequence))
        assert first is None
        scored.append([logprob for logprob in rest if logprob is not None])
        assert len(scored[-1]) == len(sequence) - 1
    return scored


async def sample(sampler: SamplingClient, prompt: Sequence[int] = PROMPT, **params: Any) -> types.SampledSequence:
    """One continuation, by default of six tokens."""
    asked = types.SamplingParams(**{"max_tokens": 6, **params})
    (sequence,) = (await sampler.sample_async(tokens(prompt), 1, asked)).sequences
    return sequence


def distance(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """The greatest difference between two sets of logprobs of the same tokens."""
    assert [len(one) for one in ones] == [len(other) for other in others]
    pairs = zip(itertools.chain(*ones), itertools.chain(*others), strict=True)
    differences = [abs(one - other) for one, other in pairs]
    assert all(map(math.isfinite, differences))
    return max(differences)
