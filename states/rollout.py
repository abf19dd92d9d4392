"""Rollout: the agents play this batch's groups against the published policy.

Reads: the batch's tasks, and what ``rollouts/<batch>.train.jsonl`` already stores.
Records: how many rollouts ended in each outcome, tokens, the file and its sha256, the first error.

Crash before the effect: nothing was sampled, the state runs again. Crash during it: every finished rollout is in the
file and only the missing ones are sampled. Crash after it: the file is complete and nothing is sampled.
"""

from orchestrator.context import StateContext, StateResult


async def body(context: StateContext) -> StateResult:
    """Collects ``batch_size`` groups of ``group_size`` rollouts; what they are worth is TrainStep's to say."""
    tasks = [task for _, task in context.resources.train_batches.batch(context.batch)]
    played = await context.play("train", tasks, group_size=context.config.group_size)
    return StateResult(played.facts)
