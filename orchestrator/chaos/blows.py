"""Where a run is struck: points and moments drawn from a seed, the same for the same seed and round."""

from dataclasses import dataclass
from random import Random

KILLS_A_ROUND = 8
"""A round is a run that is killed this often before it is left to finish."""
RECOVERY_POINTS = 40
"""About as many points lie between the start of a resumed process and its first new work."""
STRETCH = 0.25
"""The part of a run within which blows after the first fall, so that a round does not end before its blows do."""


@dataclass(frozen=True, slots=True)
class Blow:
    """One kill to come: at the ``point``-th point that the process reaches, or ``seconds`` after its start."""

    point: int | None = None
    seconds: float | None = None


def draw_blows(seed: int, round_number: int, *, num_points: int, run_seconds: float) -> list[Blow]:
    """The blows of one round: the first anywhere in a run, then a third each on the way, in recovery, at any moment.

    ``num_points`` and ``run_seconds`` are those of an undisturbed run. A process that ends before its blow has
    finished the run, and the round is over.
    """
    random = Random(f"{seed}/{round_number}")  # noqa: S311 - to be repeated, not to be secret
    first = Blow(point=random.randrange(num_points))
    return [first, *(_draw(random, num_points, run_seconds) for _ in range(KILLS_A_ROUND - 1))]


def _draw(random: Random, num_points: int, run_seconds: float) -> Blow:
    match random.randrange(3):
        case 0:
            return Blow(point=random.randrange(1 + int(STRETCH * num_points)))
        case 1:
            return Blow(point=random.randrange(min(RECOVERY_POINTS, num_points)))
        case _:
            return Blow(seconds=random.uniform(0, STRETCH * run_seconds))
