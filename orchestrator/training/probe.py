"""Whether a backend really gives an optimizer back: one save, and the step after it taken three times.

The step is taken by the client that saved (A), by one restored with the optimizer (B) and by one restored without it
(C). Only where B is A, and is not C, does a resume go on as if nothing had happened.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import tinker
from tinker import types

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import ServiceClient, TrainingClient

log = structlog.get_logger(__name__)

NAME = "optimizer-probe"
"""What is saved, and deleted again."""
TTL_SECONDS = 3_600
"""Its lifetime, should it not come to the deletion."""
LEARNING_RATE = 1e-2
WARMING_STEPS = 3
"""Enough for moments that a fresh optimizer does not have."""
NOISE = 0.1
"""B may differ from A, on hardware that does not repeat itself to the bit, by this part of its distance from C."""
TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
"""Every tokenizer has as many."""


@dataclass(frozen=True, slots=True)
class OptimizerProbe:
    """What the three steps led to, as the greatest distance between logprobs of the same tokens after them."""

    restored_difference: float
    """Of A and B."""
    fresh_difference: float
    """Of B and C."""

    @property
    def passed(self) -> bool:
        """Whether B is A, and not C."""
        return self.restored_difference <= NOISE * self.fresh_difference and self.fresh_difference > 0

    def told(self) -> str:
        """The verdict in words."""
        if self.passed:
            exactly = "exactly" if self.restored_difference == 0 else f"to {self.restored_difference:.2g}"
            return f"the optimizer comes back: a restored client takes the next step {exactly} as one that went on"
        if self.fresh_difference == 0:
            return "the optimizer does not come back: a client restored with it steps as one restored without it"
        return (
            f"a restored client takes another step than one that went on: logprobs differ by "
            f"{self.restored_difference:.2g}, and by {self.fresh_difference:.2g} from one without the optimizer"
        )


async def probe_optimizer(
    service: ServiceClient, *, model_name: str, lora_rank: int, metadata: dict[str, str], timeout_seconds: float
) -> OptimizerProbe:
    """Asks ``service`` with training clients of its own; what it saves it deletes, whatever happens.

    Raises:
        tinker.TinkerError: the backend refused a request.
        BackendError: one was not answered within ``timeout_seconds``.
    """

    async def probe() -> OptimizerProbe:
        client = await service.create_lora_training_client_async(model_name, rank=lora_rank, seed=0)
        for _ in range(WARMING_STEPS):
            await _step(client, TOKENS)
        # A name that an earlier probe was killed with is used again; only the embedded backend can have it.
        path = (await (await client.save_state_async(NAME, TTL_SECONDS, True, metadata)).result_async()).path
        try:
            went_on = await _after_a_step(client)
            restored = await _after_a_step(await service.create_training_client_from_state_with_optimizer_async(path))
            fresh = await _after_a_step(await service.create_training_client_from_state_async(path))
        finally:
            await _delete(service, path)
        return OptimizerProbe(_distance(went_on, restored), _distance(restored, fresh))

    return await reply_within(timeout_seconds, probe(), "probing the restore of the optimizer")


async def _after_a_step(client: TrainingClient) -> list[float]:
    """Logprobs once a step is taken whose gradient points elsewhere than those before."""
    await _step(client, TOKENS[::-1])
    result = await (await client.forward_backward_async([_datum(TOKENS)], "cross_entropy")).result_async()
    return list(map(float, result.loss_fn_outputs[0]["logprobs"].data))


async def _step(client: TrainingClient, tokens: Sequence[int]) -> None:
    gradient = await client.forward_backward_async([_datum(tokens)], "cross_entropy")
    step = await client.optim_step_async(types.AdamParams(learning_rate=LEARNING_RATE))
    await gradient.result_async()
    await step.result_async()


def _datum(tokens: Sequence[int]) -> tinker.Datum:
    targets = list(tokens[1:])
    return tinker.Datum(
        model_input=types.ModelInput.from_ints(list(tokens[:-1])),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=targets, dtype="int64", shape=[len(targets)]),
            "weights": types.TensorData(data=[1.0] * len(targets), dtype="float32", shape=[len(targets)]),
        },
    )


async def _delete(service: ServiceClient, path: str) -> None:
    try:
        await service.create_rest_client().delete_checkpoint_from_tinker_path_async(path)
    except tinker.TinkerError as error:
        log.warning("what the probe saved could not be deleted, and expires", path=path, error=type(error).__name__)


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(left - right) for left, right in zip(one, other, strict=True))
