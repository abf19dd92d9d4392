"""What the orchestrator itself adds to a batch of 64 rollouts of 3 turns: the wall time in which all wait for it.

That is a batch's wall time without the moments at which a request to the backend (sample, train, save, load) or an
agent's own code is under way. An agent's calls are not its own code: HTTP both ways counts as ours.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks import our_run
from benchmarks.agents import SPANS
from benchmarks.children import forked
from benchmarks.paced import Requests
from benchmarks.rows import Row, share

BATCHES = 7
SETTINGS = (*our_run.THREE_TURNS, "batch_size=16", "group_size=4", f"max_batches={BATCHES}", "save_every=0")

Span = tuple[float, float]


def measure(folder: Path) -> list[Row]:
    """One row."""
    overheads, walls = forked(folder / "output.txt", _batches, folder)
    return [share("overhead, 64 rollouts x 3", "ms", overheads, walls, at_most=0.02, limit=50)]


def _batches(folder: Path) -> tuple[list[float], list[float]]:
    """Milliseconds of overhead, and of all, by batch after the first."""
    requests = Requests()
    found = our_run.run(SETTINGS, folder, requests=requests)
    busy = merged([*SPANS, *((began, end) for _, began, end in requests.spans)])
    overheads = [(end - began) - covered(busy, began, end) for began, end in found.batches]
    return [1000 * seconds for seconds in overheads], [1000 * (end - began) for began, end in found.batches]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Their union, in order."""
    union: list[Span] = []
    for began, end in sorted(spans):
        if union and began <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((began, end))
    return union


def covered(union: Sequence[Span], began: float, end: float) -> float:
    """How much of ``began`` to ``end`` the union has."""
    return sum(max(0.0, min(end, last) - max(began, first)) for first, last in union)
