"""Log: one metric row for the batch.

Reads: what the batch's other states recorded; the row is a pure function of it.
Records: the row's ``step``, which is the batch.

A crash before, during or after the effect comes to the same: a new process first makes the file equal the rows of the
batches that the journal shows as logged, so this batch's row, torn or whole, is cut off and written again, the same.
"""

from orchestrator.context import StateContext, StateResult


async def body(context: StateContext) -> StateResult:
    """Writes the row and shows it."""
    row = context.resources.metric_rows.write(context.run, context.batch)
    seconds = sum(context.run.batches[context.batch].seconds.values())
    context.resources.progress.batch_finished(context.batch, row, seconds, skipped=row.get("train/skip_reason"))
    return StateResult({"step": context.batch})
