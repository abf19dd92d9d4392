"""Whole runs of the default recipe against tinker-cookbook's synchronous loop, and against the reference's way.

Measured is the time from libraries imported to all saved, in a fresh process each. At a remote service's pace each
sample call takes 0.2 s more, each train step 2 s, each save 1 s; there and against the reference a batch is one train
step.
"""

from pathlib import Path
from statistics import median

from benchmarks import cookbook_run, our_run, reference
from benchmarks.children import forked
from benchmarks.paced import REMOTE
from benchmarks.rows import Row, compared

SAME_WORK = ("final_learning_rate=None", "eval_every=0", "save_every=0", "rolling_save_every=0")
"""What the cookbook's loop has no option for, or does at other moments."""
ONE_STEP = ("num_epochs=1", "num_substeps=1")
ROUNDS, BATCHES, REMOTE_BATCHES, REFERENCE_BATCHES = 3, 6, 6, 4


def measure(folder: Path) -> list[Row]:
    """Three rows."""
    return [_remote(folder / "remote"), _plain(folder / "plain"), _reference(folder / "reference")]


def _remote(folder: Path) -> Row:
    settings = (*SAME_WORK, *ONE_STEP, f"max_batches={REMOTE_BATCHES}")
    ours, theirs, work = _side_by_side(folder, settings, 1, remote=True)
    note = f"{REMOTE_BATCHES} batches, one round of whole runs; each made {work}"
    return compared("whole run, remote pace", "s", ours, theirs, "ours/theirs", ratio_at_most=1.05, note=note)


def _plain(folder: Path) -> Row:
    settings = (*SAME_WORK, f"max_batches={BATCHES}")
    ours, theirs, work = _side_by_side(folder, settings, ROUNDS, remote=False)
    note = f"{BATCHES} batches, whole runs; each made {work}"
    return compared("whole run, nothing added", "s", ours, theirs, "ours/theirs", ratio_at_most=4, note=note)


def _side_by_side(
    folder: Path, settings: tuple[str, ...], rounds: int, *, remote: bool
) -> tuple[list[float], list[float], str]:
    """Seconds of ours and of the cookbook's, and the work that both did."""
    ours, theirs, work = [], [], ""
    for number in range(rounds):
        ours_folder, theirs_folder = _made(folder / f"ours-{number}"), _made(folder / f"theirs-{number}")
        mine = forked(ours_folder / "output.txt", _run_ours, settings, ours_folder, remote)
        other = forked(theirs_folder / "output.txt", _run_theirs, settings, theirs_folder, remote)
        work = _work(mine)
        if work != _work(other):
            raise RuntimeError(f"the work differs: ours {work}; the cookbook's {_work(other)}")
        ours.append(mine.seconds)
        theirs.append(other.seconds)
    return ours, theirs, work


def _work(run: our_run.Measured) -> str:
    """What was asked of the backend; the cookbook saves the final sampler once more, and no first state."""
    saves = run.counts["save_weights_for_sampler"] + run.counts["save_state"]
    return f"{run.counts['sample']} samples, {run.counts['optim_step']} steps, {saves} saves"


def _reference(folder: Path) -> Row:
    settings = ("final_learning_rate=None", "eval_every=0", "rolling_save_every=0", f"max_batches={REFERENCE_BATCHES}")
    ours_folder, theirs_folder = _made(folder / "ours"), _made(folder / "theirs")
    mine = forked(ours_folder / "output.txt", _run_ours, settings, ours_folder, False)
    other = forked(theirs_folder / "output.txt", reference.run, settings, theirs_folder)
    # Batches, not runs: so few of them would be measured with the start of both.
    ours, theirs = (median(end - began for began, end in run.batches) for run in (mine, other))
    note = f"a batch, medians of {REFERENCE_BATCHES - 1} after the first; one run of each"
    return compared("batch, the reference's way", "s", [ours], [theirs], "theirs/ours", ratio_at_least=3, note=note)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _run_ours(settings: tuple[str, ...], folder: Path, remote: bool) -> our_run.Measured:
    return our_run.run(settings, folder, pace=REMOTE if remote else None)


def _run_theirs(settings: tuple[str, ...], folder: Path, remote: bool) -> our_run.Measured:
    return cookbook_run.run(settings, folder, pace=REMOTE if remote else None)
