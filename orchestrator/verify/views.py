"""The views a run directory holds: each must be what the journal gives, or what a kill leaves of it on the way there.

- ``config.json`` is written once a process has journaled that it took the run up, before it enters a state.
- ``checkpoints.jsonl`` is written before a process enters its first state, and after every record of a checkpoint.
- ``metrics.jsonl`` is made equal to the journal before a process enters its first state; then a row is appended just
  before the record that says so. So it is never behind, but for the final row, and ahead by no more than one row, which
  may be torn.

Between those moments and the end of the journal a view may still be what it was at one of the records since.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchestrator.config import CONFIG_NAME, config_json
from orchestrator.errors import FaultFoundError
from orchestrator.journal.recovery import RunState
from orchestrator.names import State
from orchestrator.reporting.metrics import FILE_NAME as METRICS_NAME
from orchestrator.reporting.metrics import journaled_rows, metric_row
from orchestrator.reporting.metrics import view_of as metrics_view
from orchestrator.training.checkpoints import FILE_NAME as CHECKPOINTS_NAME
from orchestrator.training.checkpoints import view_of as checkpoints_view
from orchestrator.verify.evidence import Evidence

CURE = "`python -m orchestrator journal {log_path} --repair` makes it anew from the journal, and so does a resume"
SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class View:
    """A file that can be made from the journal."""

    name: str
    content: Callable[[RunState], bytes]
    """What the journal gives."""
    grows: Callable[[RunState], tuple[bytes, bytes]]
    """The least and the most that may be there: the most, cut anywhere after the least."""


def _whole(content: Callable[[RunState], bytes]) -> Callable[[RunState], tuple[bytes, bytes]]:
    """A view that is replaced at once, never partly there."""
    return lambda run: (content(run), content(run))


def _rows(run: RunState) -> bytes:
    return metrics_view(journaled_rows(run))


def _rows_on_the_way(run: RunState) -> tuple[bytes, bytes]:
    rows = journaled_rows(run)
    if run.state is State.FINISHED and not run.finished:  # the final row is written after its evaluation is journaled
        return metrics_view([row for row in rows if row["step"] < run.batch]), metrics_view(rows)
    if run.state is State.LOG and run.entries:
        return metrics_view(rows), metrics_view([*rows, metric_row(run, run.batch)])
    return metrics_view(rows), metrics_view(rows)


def _config(run: RunState) -> bytes:
    return config_json(run.config)


VIEWS = (
    View(METRICS_NAME, _rows, _rows_on_the_way),
    View(CHECKPOINTS_NAME, checkpoints_view, _whole(checkpoints_view)),
    View(CONFIG_NAME, _config, _whole(_config)),
)


def check_views(evidence: Evidence) -> str:
    """The first faulty view.

    Raises:
        FaultFoundError: naming the place where it first differs from what the journal gives.
    """
    for _, fault in view_faults(evidence):
        raise fault
    return f"{len(VIEWS)} views, {len(journaled_rows(evidence.run))} metric rows"


def view_faults(evidence: Evidence) -> Iterator[tuple[View, FaultFoundError]]:
    """Every view that is neither what the journal gives nor what a kill can leave."""
    for view in VIEWS:
        found = evidence.views[view.name]
        if found is None:
            if evidence.settled is not None:
                yield view, _fault(evidence, view, "the file is missing")
            continue
        ranges = (view.grows(run) for run in evidence.recent())
        if not any(most.startswith(found) and len(found) >= len(least) for least, most in ranges):
            yield view, _difference(evidence, view, found)


def _difference(evidence: Evidence, view: View, found: bytes) -> FaultFoundError:
    expected = view.content(evidence.run)
    shorter = min(len(found), len(expected))
    offset = next((index for index in range(shorter) if found[index] != expected[index]), shorter)
    shown, wanted = (text[offset : offset + SHOWN_BYTES] or b"its end" for text in (found, expected))
    problem = f"found {shown!r} where the journal gives {wanted!r}"
    return _fault(evidence, view, problem, line=found.count(b"\n", 0, offset) + 1, offset=offset)


def _fault(
    evidence: Evidence, view: View, problem: str, *, line: int | None = None, offset: int | None = None
) -> FaultFoundError:
    cure = CURE.format(log_path=evidence.log_path)
    return FaultFoundError(evidence.log_path / view.name, problem=problem, cure=cure, line=line, offset=offset)
