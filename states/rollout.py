"""Rollout: the agents play this batch's groups against the published policy.

Reads: the batch's tasks, what ``rollouts/<batch>.train.jsonl`` already stores, and ``turns/<batch>.train.jsonl``.
Records: how many rollouts ended in each outcome, tokens, the file and its sha256, the first error, mismatched replays.

Crash before the effect: nothing was sampled, the state runs again. Crash during it: every finished rollout and every
turn of the others is on the disk, and only the missing turns are sampled. Crash after it: the file is complete and
nothing is sampled.
"""

from orchestrator.context import StateContext, StateResult


async def body(context: StateContext) -> StateResult:
    """Collects ``batch_size`` groups of ``group_size`` rollouts; what they are worth is TrainStep's to say."""
    tasks = [task for _, task in context.resources.train_batches.batch(context.batch)]
    played = await context.play("train", tasks, group_size=context.config.group_size)
    return StateResult(played.facts, {"rollout/replay_mismatches": float(played.facts["replay_mismatches"])})
