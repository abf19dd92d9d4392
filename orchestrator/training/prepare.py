"""Making a batch's train step from its datums: penalty, learning rate, loss options and the order of every pass."""

from typing import Any, cast

import tinker
from tinker_cookbook.rl.metrics import incorporate_kl_penalty

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.rollouts.trajectories import TrainingBatch, datum_order
from orchestrator.training.datums import TrainStepInput


async def prepare_step(
    config: Config, service: ServiceClient, training_batch: TrainingBatch, *, batch: int, schedule_batches: int
) -> TrainStepInput:
    """What ``batch`` sends, with the KL penalty against the base model in its advantages where one is configured.

    ``training_batch`` has at least one datum.
    """
    metrics = dict(training_batch.metrics)
    datums: list[tinker.Datum] = list(training_batch.datums)
    if config.kl_penalty_coef > 0:
        request = service.create_sampling_client_async(base_model=config.model_name)
        reference = await reply_within(config.backend_timeout_seconds, request, "loading the KL reference")
        penalty = incorporate_kl_penalty(
            datums,
            cast("Any", reference),  # the cookbook names the SDK's class, of which it uses our surface
            config.kl_penalty_coef,
            config.kl_discount_factor,
        )
        penalty_metrics = await reply_within(config.backend_timeout_seconds, penalty, "logprobs of the KL reference")
        metrics |= {f"optim/{name}": float(value) for name, value in penalty_metrics.items()}
    return TrainStepInput(
        batch=batch,
        learning_rate=learning_rate(config, batch=batch, schedule_batches=schedule_batches),
        loss_fn=config.loss_fn,
        loss_fn_config=_loss_fn_config(config),
        num_substeps=config.num_substeps,
        orders=tuple(tuple(datum_order(config.seed, batch, epoch, len(datums))) for epoch in range(config.num_epochs)),
        metrics=metrics,
        datums=tuple(datums),
    )


def learning_rate(config: Config, *, batch: int, schedule_batches: int) -> float:
    """The Adam learning rate of ``batch``: constant, or linear to ``final_learning_rate`` at ``schedule_batches - 1``.

    ``schedule_batches`` is the number of batches the run was started with: extending the run later leaves the schedule
    as it was promised, and the batches added are trained at ``final_learning_rate``.
    """
    if config.final_learning_rate is None or schedule_batches < 2:
        return float(config.learning_rate)
    done = min(1.0, batch / (schedule_batches - 1))
    return config.learning_rate + done * (config.final_learning_rate - config.learning_rate)


def _loss_fn_config(config: Config) -> dict[str, float] | None:
    thresholds = {
        "clip_low_threshold": config.clip_low_threshold,
        "clip_high_threshold": config.clip_high_threshold,
    }
    return {name: float(value) for name, value in thresholds.items() if value is not None} or None
