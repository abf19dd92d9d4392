"""The charts of when things happened: stays in states, lives of checkpoints, and what kills cost."""

from orchestrator.names import CYCLE
from orchestrator.report.drawing import ROW_PIXELS, Figure, Values, bar_chart, life_chart, specification, stay_chart
from orchestrator.report.model import START_UP, Report
from orchestrator.report.timeline import AT_WORK, LEFT
from orchestrator.reporting.progress import duration

MAX_TIMELINE_BATCHES = 60
MAX_CHECKPOINTS = 40
"""The newest ones are drawn."""
MAX_ROWS = 300
"""Of a table; the newest ones."""
STOP_ROW, RESUME_ROW = "kills, stops", "resumes"


def timeline(report: Report) -> Figure:
    """Every stay in a state of the newest batches, with the kills, other stops and resumes between them."""
    newest = max((span.batch for span in report.spans), default=0)
    since = max(0, newest - MAX_TIMELINE_BATCHES + 1)
    spans = [span for span in report.spans if span.batch >= since]
    begins = min((span.start_seconds for span in spans), default=0.0)
    stays: Values = [
        {
            "row": span.state,
            "start": span.start_seconds,
            "end": span.end_seconds,
            "seconds": span.end_seconds - span.start_seconds,
            "batch": span.batch,
            "process": span.process,
            "ending": "left for the next state" if span.ending in {LEFT, AT_WORK} else "cut off",
            "how": span.ending,
        }
        for span in spans
    ]
    events: Values = []
    for process in report.processes:
        number = process.number
        if number and process.start_seconds >= begins:
            event = {"row": RESUME_ROW, "event": "resume", "label": f"resume {number}", "where": process.took_up}
            events.append({"start": process.start_seconds, "process": number, **event})
        if process.ending not in {AT_WORK, "finished"} and process.end_seconds >= begins:
            event = {"row": STOP_ROW, "event": "stop", "label": process.ending, "where": process.ended_in}
            events.append({"start": process.end_seconds, "process": number, **event})
    rows = [STOP_ROW, RESUME_ROW, START_UP, *(state.value for state in CYCLE)]
    chart = stay_chart("timeline", stays, events, rows=rows)
    stops = [
        f"{event['label']} in {event['where']} after {duration(event['start'])}"
        for event in events
        if event["event"] == "stop"
    ]
    some = f" The newest {MAX_TIMELINE_BATCHES} batches." if since else ""
    return Figure(
        "timeline",
        "Where the time went",
        f"Stays in each state over {duration(max((span.end_seconds for span in spans), default=0.0))} of work. "
        f"Stopped {len(stops)} times{': ' if stops else ''}{'; '.join(stops)}.",
        f"Work time: hours when no process was at work are left out. A cross is a kill or another stop, a triangle the "
        f"resume after it.{some}",
        specification(chart, height_pixels=(len(rows) + 2) * ROW_PIXELS) if stays else None,
        ("batch", "state", "process", "from second", "seconds", "it was"),
        [
            (
                span.batch,
                span.state,
                span.process,
                round(span.start_seconds, 3),
                round(span.end_seconds - span.start_seconds, 3),
                span.ending,
            )
            for span in spans
        ],
    )


def checkpoints(report: Report) -> Figure:
    """What was saved, and how long it could be relied on."""
    newest = report.checkpoints[-MAX_CHECKPOINTS:]
    end = max([report.run.batch, *(saved.batch for saved in newest)])
    lives: Values = [
        {
            "name": saved.name,
            "kind": saved.checkpoint_kind,
            "saved": saved.batch,
            "dropped": end if saved.dropped_in_batch is None else max(saved.batch, saved.dropped_in_batch + 1),
            "fate": saved.fate,
            "alive": saved.dropped_in_batch is None,
        }
        for saved in newest
    ]
    rows = list(dict.fromkeys(saved.name for saved in newest))
    alive = [saved.name for saved in newest if saved.dropped_in_batch is None]
    return Figure(
        "checkpoints",
        "Checkpoints",
        f"{len(report.checkpoints)} checkpoints were saved; alive: {', '.join(alive) or 'none'}.",
        "A bar begins where a checkpoint was saved. A stroke ends it where it was dropped; without one it lives.",
        specification(life_chart("checkpoints", lives, rows=rows), height_pixels=max(2, len(rows)) * ROW_PIXELS)
        if lives
        else None,
        ("name", "kind", "batches trained", "saved at", "by process", "fate", "expires at", "path"),
        [
            (
                saved.name,
                saved.checkpoint_kind,
                saved.batch,
                saved.saved_at,
                saved.process,
                saved.fate,
                saved.expires_at or "never",
                saved.state_path,
            )
            for saved in report.checkpoints[-MAX_ROWS:]
        ],
    )


def lost(report: Report) -> Figure:
    """What was done in vain, by batch; only batches in which something was."""
    work = report.work
    values: Values = []
    table: list[tuple[int, ...]] = []
    for batch, done in () if work is None else work.batches.items():
        amounts = {"sampled": done.sampled_tokens, "trained on": done.trained_tokens}
        counted = (
            *(amount.lost for amount in amounts.values()),
            done.optim_steps.lost,
            done.saves.lost,
            done.unanswered_calls,
        )
        if any(counted):
            table.append((batch, *counted))
            values += [
                {"batch": batch, "series": told, "value": amount.lost, "order": order}
                for order, (told, amount) in enumerate(amounts.items())
                if amount.lost
            ]
    chart = bar_chart(
        "lost", values, "tokens lost", order=["sampled", "trained on"], bin_size=1, last_batch=report.run.batch
    )
    return Figure(
        "lost",
        "What kills cost",
        f"Work done in vain, in {len(table)} batches." if table else "No work was lost.",
        "By the batch that the run was in. Tokens trained on again after a restore are counted where they were redone.",
        specification(chart) if values else None,
        ("batch", "sampled tokens", "trained tokens", "optimizer steps", "saves", "calls never answered"),
        table[-MAX_ROWS:],
    )
