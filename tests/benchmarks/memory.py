"""How much resident memory grows over a run of 200 small batches, from the end of the fifth to the end of the last."""

from pathlib import Path

import psutil  # type: ignore[import-untyped]
from benchmarks import our_run
from benchmarks.children import forked
from benchmarks.rows import Row, compared

BATCHES, FIRST = 200, 5
SETTINGS = (
    *our_run.THREE_TURNS,
    "batch_size=2",
    "group_size=4",
    f"max_batches={BATCHES}",
    "max_no_progress_batches=200",
)


def measure(folder: Path) -> list[Row]:
    """One row."""
    megabytes = forked(folder / "output.txt", _megabytes, folder)
    name = f"memory, {BATCHES} batches"
    return [
        compared(
            name, "MB", [megabytes[-1]], [megabytes[FIRST]], "ours/theirs", ratio_at_most=1.1, note="one run; against "
            f"batch {FIRST}'s end",
        )
    ]  # fmt: skip


def _megabytes(folder: Path) -> list[float]:
    """Resident at the end of each batch."""
    process, found, count = psutil.Process(), [], 0

    def observe(point: str) -> None:
        nonlocal count
        if point == "append:after:transition":
            count += 1
            if count % our_run.STATES == 0:
                found.append(process.memory_info().rss / 2**20)

    our_run.run(SETTINGS, folder, observer=observe)
    return found
