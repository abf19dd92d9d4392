"""The chaos command: an undisturbed run, then rounds of killed ones until enough kills have changed nothing."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from orchestrator.chaos.blows import Blow, draw_blows
from orchestrator.chaos.rounds import Reference, Round, RunFailedError, Runs
from orchestrator.chaos.wanted import Wanted
from orchestrator.errors import ConfigError, OrchestratorError

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    rounds: Sequence[Round]
    reference: Reference
    seconds: float
    folder: Path
    """Holds the runs, and of those that were killed the one that came out differently."""
    seed: int
    """Of the runs and of the kills."""

    @property
    def num_kills(self) -> int:
        """Kills that happened."""
        return sum(len(played.kills) for played in self.rounds)

    @property
    def failed(self) -> Round | None:
        """The first round that came out differently."""
        return next((played for played in self.rounds if played.difference is not None), None)

    @property
    def requests(self) -> Counter[str]:
        """How often each request was made in all rounds."""
        return sum((played.requests for played in self.rounds), Counter())

    @property
    def num_killed_runs(self) -> int:
        """Runs that were killed at least once."""
        return sum(bool(played.kills) for played in self.rounds)


def bound(num_trials: int) -> float:
    """The largest share of trials that could go wrong, of which none would show in one campaign of 20.

    The one-sided Clopper-Pearson bound for no event in independent trials; 1 without any.
    """
    return float(1 - (1 - CONFIDENCE) ** (1 / num_trials)) if num_trials else 1.0


def run_campaign(wanted: Wanted, tell: Callable[[str], None]) -> Verdict:
    """Plays the undisturbed run and the rounds; ``tell`` gets a line now and then.

    Raises:
        OrchestratorError: the undisturbed run did not finish, or does not come out the same twice.
        ConfigError: the folder cannot be used, or the run trains nothing.
    """
    folder = _make_folder(wanted.folder)
    runs = Runs(wanted.settings, run_seed=wanted.run_seed)
    began = time.monotonic()
    if wanted.added:
        tell(f"each run is a short one, with {' '.join(wanted.added)}, unless you give these yourself")
    tell("two undisturbed runs; loading the libraries takes some seconds")
    try:
        reference = _reference(runs, folder)
    except RunFailedError as error:
        raise OrchestratorError(f"chaos: {error}") from error
    if not reference.requests.get("optim_step"):
        raise ConfigError(
            "chaos: the undisturbed run takes no optimizer step, so nothing could be said of weights and optimizer: "
            "the rewards of each group are equal. Give an agent whose rewards differ, a larger group_size, or "
            f"remove_constant_reward_groups=false. The run is kept in {reference.log_path}"
        )
    tell(f"a run takes {reference.seconds:.1f} s and passes {reference.num_points} points")

    def play(named: tuple[str, Sequence[Blow]]) -> Round:
        name, blows = named
        played = runs.play(name, blows, folder / name, reference)
        if played.difference is None:
            shutil.rmtree(folder / name)
        return played

    played: list[Round] = []
    due = _rounds(wanted, reference, played)
    with runs.ended_with_us(), ThreadPoolExecutor(wanted.jobs) as pool:
        while (abreast := list(islice(due, wanted.jobs))) and not any(done.difference for done in played):
            played += pool.map(play, abreast)
            tell(f"{played[-1].name}: {sum(len(done.kills) for done in played):,} kills so far")
    return Verdict(played, reference, time.monotonic() - began, folder, wanted.run_seed)


def _reference(runs: Runs, folder: Path) -> Reference:
    """Two undisturbed runs: were they to differ, comparing a killed one would say nothing."""
    runs.undisturbed(folder / "undisturbed")
    began = time.monotonic()
    runs.undisturbed(folder / "undisturbed-again")
    reference = runs.reference(folder / "undisturbed-again", seconds=time.monotonic() - began)
    difference = runs.difference(folder / "undisturbed", reference)
    if difference is not None:
        raise RunFailedError(
            f"two undisturbed runs differ, so nothing can be said of killed ones: {difference}. Does the agent depend "
            f"on the clock, or on chance of its own? Both are kept in {folder}"
        )
    return reference


def _rounds(wanted: Wanted, reference: Reference, played: Sequence[Round]) -> Iterator[tuple[str, Sequence[Blow]]]:
    """Name and blows of the rounds that are due while ``played`` grows: one a point where asked, then random ones."""
    num_points, run_seconds = reference.num_points, reference.seconds
    if wanted.only is not None:
        kind, number = wanted.only
        yield (
            f"{kind}-{number}",
            [Blow(point=number)]
            if kind == "point"
            else draw_blows(wanted.run_seed, number, num_points=num_points, run_seconds=run_seconds),
        )
        return
    if wanted.every_point:
        yield from ((f"point-{number}", [Blow(point=number)]) for number in range(num_points))
    before = len(played)
    for number in count():
        if sum(len(done.kills) for done in played[before:]) >= wanted.kills:
            return
        yield f"round-{number}", draw_blows(wanted.run_seed, number, num_points=num_points, run_seconds=run_seconds)


def _make_folder(folder: Path | None) -> Path:
    """An empty folder, absolute."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="orchestrator-chaos-"))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"log_path={folder}: cannot be used: {error.strerror}") from error
    if used:
        raise ConfigError(f"log_path={folder}: holds files; give chaos a new or empty directory")
    return folder.resolve()
