"""How the cost of each state grows with the rollouts of a batch: runs of 16, 64 and 256 rollouts of three turns.

A ratio is the cost at 256 over four times that at 64: above 1 the last fourfold has cost more than linearly.
"""

from pathlib import Path
from statistics import median

from benchmarks import our_run
from benchmarks.children import forked
from benchmarks.rows import Row

from orchestrator.names import State

BATCH_SIZES, GROUP_SIZE, BATCHES = (4, 16, 64), 4, 4
MARGIN = 1.1
"""For what two measurements of the same thing differ by."""


def measure(folder: Path) -> list[Row]:
    """A row a state, and one for the whole run's end of memory and files."""
    by_size: list[dict[str, list[float]]] = []
    for size in BATCH_SIZES:
        place = folder / str(size)
        place.mkdir()
        by_size.append(forked(place / "output.txt", _state_seconds, size, place))
    return [_row(state, [1000 * median(seconds[state][1:]) for seconds in by_size]) for state in by_size[0]]


def _row(what: str, figures: list[float]) -> Row:
    once, four, sixteen = figures
    return Row(
        name=f"growth, {what}",
        unit="ms",
        ours=sixteen,
        theirs=4 * four,
        ratio=sixteen / (4 * four),
        ratio_at_least=None,
        ratio_at_most=MARGIN,
        ours_at_most=None,
        rounds=BATCHES - 1,
        note=f"1x {once:.1f}, 4x {four:.1f}, 16x {sixteen:.1f} ms a batch",
    )


def _state_seconds(batch_size: int, folder: Path) -> dict[str, list[float]]:
    settings = [*our_run.THREE_TURNS, f"batch_size={batch_size}", f"group_size={GROUP_SIZE}", "save_every=1"]
    found = our_run.run([*settings, f"max_batches={BATCHES}"], folder)
    seconds = dict(found.state_seconds or {})
    del seconds[State.MAYBE_EVALUATE.value]
    return {state: list(each) for state, each in seconds.items()}
