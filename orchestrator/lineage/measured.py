"""One train step, taken and measured: loss, KL and the optimizer's numbers of each update, and logprobs after it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import tinker
from tinker import types
from tinker_cookbook.rl.metrics import compute_kl_sample_train
from tinker_cookbook.utils.misc_utils import split_list
from torch import Tensor

from orchestrator.backends.surface import Future, TrainingClient
from orchestrator.training.datums import TrainStepInput
from orchestrator.training.past import PastWeights

AfterStep = Sequence[Tensor]
"""For each datum the logprobs of its target tokens, shape (T,), under the weights after the step."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a train step did to the weights that it was taken from."""

    metrics: Mapping[str, float]
    """As TrainStep journals them, without those that were measured while the datums were made."""
    updates: Sequence[Mapping[str, float]]
    """For each optimizer step the numbers that came with its gradients and its update, and its ``kl``: the mean, over
    its trained tokens, of the logprob when sampled less the one before the update."""
    after: AfterStep
    """Of the datums that were asked for."""


async def measure(weights: PastWeights, step: TrainStepInput, shown: Sequence[tinker.Datum]) -> MeasuredStep:
    """Takes ``step`` on the weights of its batch, which are given up with ``weights``, and looks at ``shown`` after it.

    Raises:
        UnrecoverableError, SideFileDamagedError: there are no such weights.
    """
    client = await weights.at_batch(step.batch)
    watched = _Watched(client)
    metrics = await weights.apply(cast("TrainingClient", watched), step)
    updates = [
        {"kl": _kl(chunk, gradient), **gradient.metrics, **(update.metrics or {})}
        for chunk, gradient, update in zip(_chunks(step), watched.gradients, watched.updates, strict=True)
    ]
    # Gradients gather in a client that nobody uses again.
    forward = await client.forward_backward_async(
        [_sendable(datum) for datum in shown], cast("Any", step.loss_fn), step.loss_fn_config
    )
    return MeasuredStep(metrics, updates, _logprobs(await weights.reply(forward.result_async(), "logprobs after it")))


@dataclass(slots=True)
class _Watched:
    """A training client whose replies are kept; only what ``train_step`` asks for."""

    client: TrainingClient
    gradients: list[types.ForwardBackwardOutput] = field(default_factory=list)
    updates: list[types.OptimStepResponse] = field(default_factory=list)

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> "_Kept":
        return _Kept(await self.client.forward_backward_async(data, loss_fn, loss_fn_config), self.gradients)

    async def optim_step_async(self, adam_params: types.AdamParams) -> "_Kept":
        return _Kept(await self.client.optim_step_async(adam_params), self.updates)


@dataclass(slots=True)
class _Kept:
    """A reply that is put aside when it is waited for; ``train_step`` waits in the order of its requests."""

    future: Future[Any]
    replies: list[Any]

    async def result_async(self, timeout: float | None = None) -> Any:
        reply = await self.future.result_async(timeout)
        self.replies.append(reply)
        return reply


def _chunks(step: TrainStepInput) -> list[list[tinker.Datum]]:
    """The datums of each optimizer step, as ``train_step`` splits them."""
    return [
        chunk
        for order in step.orders
        for chunk in split_list([step.datums[index] for index in order], min(step.num_substeps, len(order)))
    ]


def _kl(chunk: list[tinker.Datum], gradient: types.ForwardBackwardOutput) -> float:
    return float(compute_kl_sample_train(chunk, list(_logprobs(gradient)))["optim/kl_sample_train_v1"])


def _logprobs(output: types.ForwardBackwardOutput) -> AfterStep:
    return [outputs["logprobs"].to_torch() for outputs in output.loss_fn_outputs]


def _sendable(datum: tinker.Datum) -> tinker.Datum:
    """Without its mask, which no loss knows."""
    inputs = {name: tensor for name, tensor in datum.loss_fn_inputs.items() if name != "mask"}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)
