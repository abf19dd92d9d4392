"""Reads a run directory into a report; nothing is written, and a run at work is not disturbed."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import orjson

from orchestrator.backends.usage import USAGE_NAME
from orchestrator.errors import RefusedError
from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import Reading, require_journal
from orchestrator.journal.plan import make_plan
from orchestrator.journal.records import Kind
from orchestrator.report.model import Process, Report
from orchestrator.report.samples import choose_rollouts
from orchestrator.report.texts import Texts, find_texts
from orchestrator.report.timeline import AT_WORK, KILLED, read_timeline
from orchestrator.reporting.metrics import journaled_rows
from orchestrator.reporting.spending import read_spending
from orchestrator.reporting.story import story_line
from orchestrator.reporting.summarize import summarize
from orchestrator.reporting.work import read_work
from orchestrator.telling import told
from orchestrator.verify import verify

MAX_STORY_LINES = 200
ROUTINE = frozenset({Kind.STATE_ENTERED, Kind.TRANSITION})
"""Kinds of records that a run has many of: curves and timeline tell them."""

Result = TypeVar("Result")


@dataclass(slots=True)
class _Problems:
    """What could not be read."""

    told: list[str] = field(default_factory=list)

    def attempt(self, what: str, read: Callable[[], Result]) -> Result | None:
        """What ``read`` gives; None: files are damaged or gone, which is noted, and the rest can still be told."""
        try:
            return read()
        except (RefusedError, OSError) as error:
            self.told.append(f"{what}: {told(error)}")
            return None


def read_report(log_path: Path, *, now: datetime, with_prompts: bool, judge_at_work: bool = True) -> Report:
    """The report of the run in ``log_path``, as of ``now`` (an aware UTC time).

    ``judge_at_work`` False: a run that a process works on is not judged, which takes as long as reading all its files.

    Raises:
        ConfigError: no run is there.
        JournalDamagedError: the journal cannot be trusted, and so there is nothing to tell.
    """
    # Asked before and after the journal is read: a process that starts or ends meanwhile must not look killed.
    holder = RunLock.holder(log_path)
    reading = require_journal(log_path)
    holder = holder or RunLock.holder(log_path)
    run, records, problems = reading.run, reading.records, _Problems()
    if reading.torn is not None and holder is None:
        problems.told.append(
            f"journal: a torn last line at byte {reading.torn.offset} is left out; a resume cuts it off"
        )
    at_work = holder is not None and run.running
    last_requests = problems.attempt("usage", lambda: _last_requests(log_path)) or {}
    timeline = read_timeline(records, last_requests=last_requests, now=now if at_work else None)
    plan = problems.attempt("plan", lambda: make_plan(run, log_path))
    work = problems.attempt("work lost", lambda: read_work(log_path, records, run, live=holder is not None))
    texts, why_no_texts = _texts(log_path, run.config.get("model_name", "unknown")) if with_prompts else (None, None)
    sample = choose_rollouts(run, log_path, texts=texts, why_no_texts=why_no_texts, read=problems.attempt)
    judged = holder is None or judge_at_work
    verdict = problems.attempt("verify", lambda: verify(log_path)) if judged else None
    summary = summarize(run, log_path, work, read_spending(log_path, records))
    doing, tone = _doing(holder, run.finished, timeline.processes[-1] if timeline.processes else None)
    return Report(
        log_path=str(log_path),
        made_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        doing=doing,
        tone=tone,
        run=run,
        summary=summary,
        kills=sum(process.ending == KILLED for process in timeline.processes),
        rows=journaled_rows(run),
        processes=timeline.processes,
        spans=timeline.spans,
        checkpoints=timeline.checkpoints,
        plan=None if plan is None else plan.lines(),
        work=work,
        sample=sample,
        with_prompts=texts is not None,
        verdict=verdict,
        unjudged="it could not be read" if judged else "a process works on the run; it is judged once none does",
        story=_story(reading),
        problems=problems.told,
    )


def _texts(log_path: Path, model_name: str) -> tuple[Texts | None, str | None]:
    try:
        return find_texts(log_path, model_name), None
    except ValueError as error:
        return None, str(error)


def _doing(holder: str | None, finished: bool, last: Process | None) -> tuple[str, str]:
    if holder is not None:
        return f"at work: {holder}" + (f", in {last.ended_in}" if last and last.ending == AT_WORK else ""), "busy"
    if finished:
        return "finished", "good"
    if last is None:
        return "not begun", "bad"
    return f"{last.ending} in {last.ended_in}; the same command resumes it", "bad"


def _story(reading: Reading) -> list[str]:
    lines = [story_line(record) for record in reading.records if record.kind not in ROUTINE]
    if len(lines) <= MAX_STORY_LINES:
        return lines
    half = MAX_STORY_LINES // 2
    left_out = len(lines) - 2 * half
    return [*lines[:half], f"… {left_out:,} lines left out: python -m orchestrator journal tells all …", *lines[-half:]]


def _last_requests(log_path: Path) -> dict[int, datetime]:
    """When each process made, or got the reply of, its last request; a line that cannot be read says nothing."""
    path = log_path / USAGE_NAME
    last: dict[int, datetime] = {}
    for line in _lines(path) if path.exists() else ():
        with suppress(ValueError, KeyError, TypeError):
            fields = orjson.loads(line)
            last[int(fields["process"])] = datetime.fromisoformat(fields["at"])
    return last


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file
