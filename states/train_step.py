"""TrainStep: the batch's datums are stored, then sent.

Reads: the stored rollouts, whose sha256 Rollout recorded.
Records: ``optim_steps``, ``datums``, ``trained_tokens``, ``learning_rate``, ``skipped`` and the ``reason``, the datum
file and its sha256, metrics.

Crash before the datums are stored: they are made again from the same rollouts. Crash between storing and the transition
record: whatever was sent went to weights that died with the process; the newest live checkpoint is restored, the stored
batches since are redone, then this one from its stored datums. Crash after the record: the same, for the next state.
"""

from orchestrator.context import StateContext, StateResult
from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.durable import sha256_of
from orchestrator.names import State
from orchestrator.rollouts.outcomes import read_rollouts
from orchestrator.rollouts.trajectories import TrainingBatch, form_training_batch
from orchestrator.training.datums import TrainStepInput, datum_path, load, store
from orchestrator.training.prepare import learning_rate, prepare_step


async def body(context: StateContext) -> StateResult:
    """Takes ``num_epochs`` passes of ``num_substeps`` optimizer steps, or none where nothing can be learned."""
    played = context.result_of(State.ROLLOUT)
    rollouts = read_rollouts(context.log_path / played["file"], sha256=played["sha256"])
    training_batch = form_training_batch(
        rollouts,
        policy_version=context.batch,
        group_size=context.config.group_size,
        on_failure=context.config.on_failure,
        remove_constant=context.config.remove_constant_reward_groups,
    )
    if training_batch.skip_reason is not None:
        return _skipped(context, training_batch)
    step = await _stored_step(context, training_batch)
    weights = context.resources.weights
    client = await weights.at_batch(context.run, context.batch, recorder=context.recorder)
    metrics = await weights.apply(client, step)
    path = datum_path(context.log_path, context.batch)
    facts = {
        "skipped": False,
        "reason": None,
        "optim_steps": step.optim_steps,
        "datums": len(step.datums),
        "trained_tokens": step.trained_tokens,
        "learning_rate": step.learning_rate,
        "file": str(path.relative_to(context.log_path)),
        "sha256": sha256_of(path),
    }
    return StateResult(facts, {**step.metrics, **metrics, "optim/lr": step.learning_rate})


async def _stored_step(context: StateContext, training_batch: TrainingBatch) -> TrainStepInput:
    """The step as an earlier attempt stored it, or made and stored now: what is sent is always what is on disk."""
    if datum_path(context.log_path, context.batch).exists():
        try:
            return load(context.log_path, context.batch)
        except SideFileDamagedError as error:
            # Nothing that has survived was trained on it, so it may be made again from the same rollouts.
            context.log.warning("the stored datums of this batch are damaged and made again", error=str(error))
    step = await prepare_step(
        context.config,
        context.resources.service,
        training_batch,
        batch=context.batch,
        schedule_batches=context.run.schedule_batches,
    )
    store(context.log_path, step, disk=context.resources.disk)
    return load(context.log_path, context.batch)


def _skipped(context: StateContext, training_batch: TrainingBatch) -> StateResult:
    context.log.debug("train step skipped", reason=training_batch.skip_reason)
    rate = learning_rate(context.config, batch=context.batch, schedule_batches=context.run.schedule_batches)
    facts = {
        "skipped": True,
        "reason": training_batch.skip_reason,
        "optim_steps": 0,
        "datums": 0,
        "trained_tokens": 0,
        "learning_rate": rate,
        "file": None,
        "sha256": None,
    }
    return StateResult(facts, {**training_batch.metrics, "optim/lr": rate})
