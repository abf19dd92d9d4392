"""MaybeEvaluate: if an evaluation is due, the published policy plays the tasks of all evaluation sets.

Reads: the evaluation tasks, what ``rollouts/<batch>.eval.jsonl`` already stores, and ``turns/<batch>.eval.jsonl``.
Records: ``evaluated`` and the ``reason``, outcomes, tokens, the file and its sha256, ``test/`` metrics, and of
further sets ``test/NAME/`` metrics.

Crash before the effect: nothing was sampled, the state runs again. Crash during it: every finished rollout and every
turn of the others is on the disk, and only the missing turns are sampled. Crash after it: the file is complete and
nothing is sampled.
"""

from orchestrator.context import StateContext, StateResult
from orchestrator.rollouts.trajectories import evaluation_metrics


async def body(context: StateContext) -> StateResult:
    """Evaluates before every ``eval_every``-th batch and on the final weights."""
    due, reason = _due(context)
    if not due:
        nothing = {"outcomes": {}, "sampled_tokens": 0, "prompt_tokens": 0, "file": None, "sha256": None}
        return StateResult({"evaluated": False, "reason": reason, **nothing})
    sets = context.resources.eval_sets
    tasks = [task for tasks in sets.values() for task in tasks]
    played = await context.play("eval", tasks, group_size=context.config.eval_group_size)
    metrics = evaluation_metrics(
        played.rollouts,
        policy_version=context.batch,
        set_sizes={area: len(tasks) for area, tasks in sets.items()},
        group_size=context.config.eval_group_size,
        pass_threshold=context.config.pass_threshold,
    )
    metrics["test/replay_mismatches"] = float(played.facts["replay_mismatches"])
    return StateResult({"evaluated": True, "reason": reason, **played.facts}, metrics)


def _due(context: StateContext) -> tuple[bool, str]:
    every = context.config.eval_every
    if not context.resources.eval_sets:
        return False, "there are no evaluation tasks"
    if every == 0:
        return False, "eval_every=0"
    if context.batch == context.num_batches:
        return True, "final weights"
    if context.batch % every == 0:
        return True, f"eval_every={every}"
    return False, f"eval_every={every}: next before batch {context.batch - context.batch % every + every}"
