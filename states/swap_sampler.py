"""SwapSampler: the new weights are saved as the next policy's sampler and, where one is due, as a checkpoint.

Reads: whether TrainStep was skipped; then the next version points at the same sampler.
Records: the next ``policy_version`` and its ``sampler_path``, the ``checkpoint``'s name or null, and under
``compute_post_kl`` how far the step moved the policy. Where no checkpoint is due and the newest would expire before the
next, a rolling one is saved: the clock decides, so what is recorded comes first.

Crash before the effect: the weights are restored and redone, then saved. Crash during it: a sampler or a state that was
saved already is adopted under its name, or saved again where the backend gives each process its own names; a state
without its sampler is never recorded as a checkpoint. Crash after it: the same.
"""

from orchestrator.context import StateContext, StateResult
from orchestrator.journal.recovery import Checkpoint
from orchestrator.names import State
from orchestrator.training.datums import load
from orchestrator.training.kl import post_kl


async def body(context: StateContext) -> StateResult:
    """Saves sampler, then state: the order in which a crash leaves nothing that claims more than there is."""
    trained = context.batch + 1
    ledger, weights = context.resources.ledger, context.resources.weights
    sampler_path = context.result_of(State.PUBLISH_MODEL)["sampler_path"]
    step = context.result_of(State.TRAIN_STEP)
    if not step["skipped"]:
        client = await weights.at_batch(context.run, trained, recorder=context.recorder)
        sampler_path = await ledger.save_sampler(client, batch=trained, num_batches=context.num_batches)
    checkpoint = await _checkpoint_if_due(context, trained, sampler_path)
    metrics = {}
    if context.config.compute_post_kl and not step["skipped"]:
        sent = load(context.log_path, context.batch, sha256=step["sha256"])
        metrics = await post_kl(context.config, context.resources.service, sent, sampler_path=sampler_path)
    facts = {
        "policy_version": trained,
        "sampler_path": sampler_path,
        "checkpoint": None if checkpoint is None else checkpoint.name,
    }
    return StateResult(facts, metrics)


async def _checkpoint_if_due(context: StateContext, trained: int, sampler_path: str) -> Checkpoint | None:
    ledger = context.resources.ledger
    due = ledger.due_kind(trained, num_batches=context.num_batches)
    kind = due or "rolling"
    recorded = [kept for kept in context.run.checkpoints if kept.batch == trained and kept.checkpoint_kind == kind]
    if due is None and not recorded and not ledger.is_renewal_due(context.run, trained):
        return None
    if recorded:
        checkpoint = recorded[0]
    else:
        client = await context.resources.weights.at_batch(context.run, trained, recorder=context.recorder)
        checkpoint = await ledger.save_state(client, batch=trained, kind=kind, sampler_path=sampler_path)
        context.recorder.checkpoint_saved(checkpoint)
    # Also for one found recorded: the process that recorded it may have died right here.
    await ledger.drop_superseded_rolling(context.run, checkpoint, context.recorder)
    ledger.write_view(context.run)
    return checkpoint
