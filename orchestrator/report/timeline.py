"""When what happened: the stays in states, the processes and the checkpoints of a run, from its journal's records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from orchestrator.journal.records import Kind, Record
from orchestrator.names import State
from orchestrator.report.model import START_UP, Process, SavedCheckpoint, Span

KILLED, AT_WORK, LEFT = "killed", "at work", "left"
LEFT_OFF = "left off"
"""A state that the same process entered again, having lost what it worked with."""


@dataclass(slots=True)
class Timeline:
    """What ``read_timeline`` gives; each list in the order in which things began."""

    processes: list[Process] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    checkpoints: list[SavedCheckpoint] = field(default_factory=list)


def read_timeline(
    records: Sequence[Record], *, last_requests: Mapping[int, datetime], now: datetime | None
) -> Timeline:
    """The timeline of a run.

    A killed process leaves no last words: it is taken to have died at its last request of ``last_requests`` (by
    process), or at its last record if that is later. ``now`` is given where the newest process is at work.
    """
    reader = _Reader(last_requests)
    for record in records:
        reader.take(record)
    reader.end_process(AT_WORK if now else KILLED, at=now)
    return reader.timeline


class _Reader:
    def __init__(self, last_requests: Mapping[int, datetime]) -> None:
        self.timeline = Timeline()
        self._last_requests = last_requests
        self._process: Process | None = None
        self._started = self._seen = datetime.min.replace(tzinfo=UTC)
        self._ended: datetime | None = None
        self._worked_seconds = 0.0
        self._open: tuple[int, str, float] | None = None
        self._place = (0, State.PUBLISH_MODEL.value)

    def take(self, record: Record) -> None:
        at, fields = datetime.fromisoformat(record.at), record.fields
        if record.kind is Kind.PROCESS_STARTED:
            self.end_process(KILLED)
            self._start_process(record.at, at, fields)
            return
        self._seen = at
        match record.kind:
            case Kind.STATE_ENTERED:
                self._close(LEFT if self._open and self._open[1] == START_UP else LEFT_OFF, at)
                self._place = (fields["batch"], fields["state"])
                self._open = (*self._place, self._seconds(at))
            case Kind.TRANSITION:
                self._close(LEFT, at)
                self._place = (fields["batch"] + (fields["source"] == State.LOG), fields["dest"])
            case Kind.CHECKPOINT_SAVED:
                self._saved(record)
            case Kind.CHECKPOINT_LOST:
                self._dropped(fields)
            case Kind.PROCESS_STOPPED:
                self.end_process(fields["reason"], at=at, error=fields["error"])

    def end_process(self, ending: str, *, at: datetime | None = None, error: str | None = None) -> None:
        """The process has ended at ``at``, or, having been killed, at its last sign of life."""
        if self._process is None:
            return
        number = self._process.number
        last = at or max(self._seen, self._last_requests.get(number, self._seen))
        self._close(ending, last)
        ended = replace(
            self._process,
            end_seconds=self._seconds(last),
            ending=ending,
            ended_in=f"{self._place[1]} of batch {self._place[0]}",
            error=error,
        )
        self.timeline.processes.append(ended)
        self._worked_seconds, self._ended, self._process, self._open = ended.end_seconds, last, None, None

    def _start_process(self, stored_at: str, at: datetime, fields: Mapping[str, Any]) -> None:
        resumed = fields["resumed_from"]
        alive = [checkpoint for checkpoint in self.timeline.checkpoints if checkpoint.dropped_in_batch is None]
        self._started = self._seen = at
        self._process = Process(
            number=len(self.timeline.processes),
            started_at=stored_at,
            took_up="a new run" if resumed is None else f"{resumed['state']} of batch {resumed['batch']}",
            idle_seconds=max(0.0, (at - self._ended).total_seconds()) if self._ended else 0.0,
            start_seconds=self._worked_seconds,
            end_seconds=self._worked_seconds,
            ending="",
            ended_in="",
            error=None,
            checkpoint=max(reversed(alive), key=lambda saved: saved.batch).name if alive else None,
        )
        self._open = (self._place[0], START_UP, self._worked_seconds)

    def _seconds(self, at: datetime) -> float:
        """Seconds of work that the run had behind it at ``at``, in the life of the present process."""
        return self._worked_seconds + max(0.0, (at - self._started).total_seconds())

    def _close(self, ending: str, at: datetime) -> None:
        if self._open is None or self._process is None:
            return
        batch, state, start_seconds = self._open
        self.timeline.spans.append(Span(self._process.number, batch, state, start_seconds, self._seconds(at), ending))
        self._open = None

    def _saved(self, record: Record) -> None:
        fields = record.fields
        self.timeline.checkpoints.append(
            SavedCheckpoint(
                name=fields["name"],
                checkpoint_kind=fields["checkpoint_kind"],
                batch=fields["batch"],
                saved_at=record.at,
                process=len(self.timeline.processes),
                dropped_in_batch=None,
                fate="alive",
                expires_at=fields["expires_at"],
                state_path=fields["state_path"],
            )
        )

    def _dropped(self, fields: Mapping[str, Any]) -> None:
        for position, saved in enumerate(self.timeline.checkpoints):
            if saved.name == fields["name"] and saved.dropped_in_batch is None:
                dropped = replace(saved, dropped_in_batch=self._place[0], fate=f"dropped: {fields['reason']}")
                self.timeline.checkpoints[position] = dropped
