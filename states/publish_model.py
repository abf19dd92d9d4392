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
        NoProgressError: the last ``max_no_progress_batches`` batches of this process gave no optimizer step, or all
            rollouts of the whole run failed.
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
    run, config = context.run, context.config
    if context.batch == run.first_batch:
        return
    if context.batch == context.num_batches:
        # Nothing is left to save by stopping, but a run whose rollouts all failed must not pass for a success.
        played = [facts.results[State.ROLLOUT] for batch, facts in run.batches.items() if batch < context.batch]
        if any(result["outcomes"]["succeeded"] for result in played):
            return
        found = f"not one rollout of all {context.num_batches} batches succeeded"
        advice = "once the cause is mended, start a new run in another log_path"
    else:
        if run.no_progress_batches < config.max_no_progress_batches:
            return
        found = (
            f"{run.no_progress_batches} batches in a row gave no optimizer step "
            f"(max_no_progress_batches={config.max_no_progress_batches})"
        )
        advice = "once the cause is mended the same command resumes with the next batch"
    last = run.batches[context.batch - 1].results
    rollouts = context.log_path / last[State.ROLLOUT]["file"]
    raise NoProgressError(
        f"batch {context.batch - 1}: {found}. The last one: {last[State.TRAIN_STEP]['reason']}. First error: "
        f"{last[State.ROLLOUT]['first_error'] or 'none'}. {rollouts} has all of them; {advice}"
    )


async def _delete_previous_sampler(context: StateContext, current: str) -> None:
    if context.batch == context.run.first_batch:
        return
    previous = context.run.batches[context.batch - 1].results[State.PUBLISH_MODEL]["sampler_path"]
    kept = {checkpoint.sampler_path for checkpoint in context.run.checkpoints} | {current}
    if previous not in kept:
        await context.resources.ledger.delete(previous)
