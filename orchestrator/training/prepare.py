"""Making a batch's train step from its datums: penalty, learning rate, loss settings and the order of every pass."""

import tinker
from tinker_cookbook.utils.lr_scheduling import compute_schedule_lr_multiplier

from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.rollouts.trajectories import TrainingBatch, datum_order
from orchestrator.training.datums import TrainStepInput
from orchestrator.training.kl import penalize


async def prepare_step(
    config: Config, service: ServiceClient, training_batch: TrainingBatch, *, batch: int, schedule_batches: int
) -> TrainStepInput:
    """What ``batch`` sends, with the KL penalty in its advantages where one is configured.

    ``training_batch`` has at least one datum. With ``shuffle_datums=false`` and one pass the requests are those of
    tinker-cookbook's synchronous loop, byte for byte; otherwise each pass has the same datums in another order.
    """
    metrics = dict(training_batch.metrics)
    datums: list[tinker.Datum] = list(training_batch.datums)
    if config.kl_penalty_coef > 0:
        metrics |= await penalize(config, service, datums)
    return TrainStepInput(
        batch=batch,
        learning_rate=learning_rate(config, batch=batch, schedule_batches=schedule_batches),
        loss_fn=config.loss_fn,
        loss_fn_config=_loss_fn_config(config),
        num_substeps=config.num_substeps,
        orders=tuple(_order(config, batch, epoch, len(datums)) for epoch in range(config.num_epochs)),
        metrics=metrics,
        datums=tuple(datums),
    )


def learning_rate(config: Config, *, batch: int, schedule_batches: int) -> float:
    """The Adam learning rate of ``batch`` by ``lr_schedule``.

    With ``final_learning_rate`` the schedule reaches it at batch ``schedule_batches - 1``; without one it is
    tinker-cookbook's, on its way to 0 at ``schedule_batches``. ``schedule_batches`` is the number of batches the run
    was started with: extending the run later leaves the schedule as it was promised, and the batches added are trained
    at its last rate.
    """
    first, final = float(config.learning_rate), config.final_learning_rate
    schedule = config.lr_schedule or ("constant" if final is None else "linear")
    last = max(schedule_batches - 1, 0)
    if final is None:
        return first * compute_schedule_lr_multiplier(schedule, min(batch, last), last + 1)
    if last == 0:
        return first
    if schedule == "linear":
        return first + min(1.0, batch / last) * (final - first)
    return final + (first - final) * compute_schedule_lr_multiplier(schedule, min(batch, last), last)


def _order(config: Config, batch: int, epoch: int, count: int) -> tuple[int, ...]:
    return tuple(datum_order(config.seed, batch, epoch, count) if config.shuffle_datums else range(count))


def _loss_fn_config(config: Config) -> dict[str, float] | None:
    short_forms = {
        "clip_low_threshold": config.clip_low_threshold,
        "clip_high_threshold": config.clip_high_threshold,
    }
    given = {name: value for name, value in short_forms.items() if value is not None}
    settings = {**(config.loss_fn_config or {}), **given}  # never the same one in both
    return {name: float(value) for name, value in settings.items()} or None
