"""PublishModel: the current sampler is served under this batch's policy version.

Reads: the sampler that SwapSampler of the batch before recorded; in batch 0 it makes and saves the first one, together
with the first checkpoint.
Records: ``policy_version`` (the batch), ``sampler_path``, ``model``, ``resources_id``.

Crash before the effect: nothing is served, the state runs again. Crash during it: what was published lived in the dead
process; saves are found again by their names. Crash after it: the same as before, since serving twice changes nothing.
"""

from orchestrator.context import StateContext, StateResult
from orchestrator.errors import NoProgressError
from orchestrator.names import State


async def body(context: StateContext) -> StateResult:
    """Publishes, then deletes the sampler of the batch before, which no resume can need any more.

    Raises:
        NoProgressError: the last ``max_no_progress_batches`` batches of this process gave no optimizer step.
    """
    _require_progress(context)
    published = await context.resources.publisher.serve(context.run, recorder=context.recorder)
    await _delete_previous_sampler(context, published.sampler_path)
    return StateResult(
        {
            "policy_version": published.policy_version,
            "sampler_path": published.sampler_path,
            "model": context.config.model_name,
            "resources_id": published.resources_id,
        }
    )


def _require_progress(context: StateContext) -> None:
    without = context.run.no_progress_batches
    if without < context.config.max_no_progress_batches or context.batch == context.num_batches:
        return  # once all batches are trained there is nothing left to save by stopping
    last = context.run.batches[context.batch - 1].results
    raise NoProgressError(
        f"batch {context.batch - 1}: {without} batches in a row gave no optimizer step "
        f"(max_no_progress_batches={context.config.max_no_progress_batches}). The last one: "
        f"{last[State.TRAIN_STEP]['reason']}. First error: {last[State.ROLLOUT]['first_error'] or 'none'}. See "
        f"{context.log_path / last[State.ROLLOUT]['file']}; once the cause is mended the same command resumes with "
        "the next batch"
    )


async def _delete_previous_sampler(context: StateContext, current: str) -> None:
    if context.batch == 0:
        return
    previous = context.run.batches[context.batch - 1].results[State.PUBLISH_MODEL]["sampler_path"]
    kept = {checkpoint.sampler_path for checkpoint in context.run.checkpoints} | {current}
    if previous not in kept:
        await context.resources.ledger.delete(previous)
