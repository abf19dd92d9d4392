"""KL divergences that cost a forward pass: the penalty against the reference policy, and how far a step has moved."""

from collections.abc import Awaitable
from typing import Any, cast

import tinker
from tinker_cookbook.rl.metrics import compute_post_kl, incorporate_kl_penalty

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import SamplingClient, ServiceClient
from orchestrator.config import Config
from orchestrator.training.datums import TrainStepInput


async def penalize(config: Config, service: ServiceClient, datums: list[tinker.Datum]) -> dict[str, float]:
    """Adds the KL penalty against ``kl_reference_config`` to the advantages of ``datums``, in place.

    Returns:
        ``optim/kl_policy_base``: the mean of logprob(sampled) - logprob(reference) over the sampled tokens, in nats.
    """
    reference = await _reply(config, _reference(config, service), "loading the KL reference")
    measuring = incorporate_kl_penalty(
        datums,
        cast("Any", reference),  # the cookbook names the SDK's class, of which it uses our surface
        config.kl_penalty_coef,
        config.kl_discount_factor,
    )
    return _named(await _reply(config, measuring, "logprobs of the KL reference"))


async def post_kl(
    config: Config, service: ServiceClient, step: TrainStepInput, *, sampler_path: str
) -> dict[str, float]:
    """How far ``step`` moved the policy, from what was sampled to the weights saved at ``sampler_path``.

    Returns:
        ``optim/kl_pre_post_v1`` and ``_v2``: first- and second-order estimates over the sampled tokens, in nats.
    """
    loading = service.create_sampling_client_async(model_path=sampler_path)
    moved = await _reply(config, loading, f"loading sampler {sampler_path}")
    measuring = compute_post_kl(list(step.datums), cast("Any", moved))
    return _named(await _reply(config, measuring, "logprobs after the train step"))


def _reference(config: Config, service: ServiceClient) -> Awaitable[SamplingClient]:
    reference = config.kl_reference_config
    path = reference.load_checkpoint_path
    base_model = reference.base_model or (config.model_name if path is None else None)
    return service.create_sampling_client_async(model_path=path, base_model=base_model)


async def _reply(config: Config, request: Awaitable[Any], what: str) -> Any:
    return await reply_within(config.backend_timeout_seconds, request, what)


def _named(metrics: dict[str, float]) -> dict[str, float]:
    return {f"optim/{name}": float(value) for name, value in metrics.items()}
