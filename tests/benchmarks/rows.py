"""One row of the benchmark's table: what was measured, against what, and whether it meets its goal."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

Ratio = Literal["ours/theirs", "theirs/ours"]
"""How two figures of a row become one: speeds and costs are ours over theirs; ``times faster`` is theirs over ours."""


@dataclass(frozen=True, slots=True)
class Row:
    """Medians of the rounds; a ratio is the median of the rounds' own ratios, each measured side by side."""

    name: str
    unit: str
    """Of ``ours`` and ``theirs``: calls/s, ms, s, tokens/s, MB, x."""
    ours: float
    theirs: float | None
    """What it is measured against; None: only against a limit."""
    ratio: float | None
    ratio_at_least: float | None
    ratio_at_most: float | None
    ours_at_most: float | None
    rounds: int
    note: str
    """What a reader must know of this row beyond its module's words."""

    @property
    def met(self) -> bool:
        """Whether every goal is met; a row without one meets it."""
        ratio = self.ratio
        least = self.ratio_at_least is None or (ratio is not None and ratio >= self.ratio_at_least)
        most = self.ratio_at_most is None or (ratio is not None and ratio <= self.ratio_at_most)
        return least and most and (self.ours_at_most is None or self.ours <= self.ours_at_most)

    @property
    def goal(self) -> str:
        """The goals in a few characters, e.g. ``>= 15x, <= 20 ms``."""
        goals = []
        if self.ratio_at_least is not None:
            goals.append(f">= {self.ratio_at_least:g}x")
        if self.ratio_at_most is not None:
            goals.append(f"<= {self.ratio_at_most:g}x")
        if self.ours_at_most is not None:
            goals.append(f"<= {self.ours_at_most:g} {self.unit}")
        return ", ".join(goals)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "met": self.met}


def compared(
    name: str,
    unit: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    ratio: Ratio,
    *,
    ratio_at_least: float | None = None,
    ratio_at_most: float | None = None,
    ours_at_most: float | None = None,
    note: str = "",
) -> Row:
    """A row of rounds in which both were measured one after the other."""
    pairs = zip(ours, theirs, strict=True)
    ratios = [mine / other if ratio == "ours/theirs" else other / mine for mine, other in pairs]
    return Row(
        name=name,
        unit=unit,
        ours=median(ours),
        theirs=median(theirs),
        ratio=median(ratios),
        ratio_at_least=ratio_at_least,
        ratio_at_most=ratio_at_most,
        ours_at_most=ours_at_most,
        rounds=len(ratios),
        note=note,
    )


def alone(name: str, unit: str, ours: Sequence[float], *, ours_at_most: float, note: str = "") -> Row:
    """A row that has only a limit."""
    return Row(name, unit, median(ours), None, None, None, None, ours_at_most, len(ours), note)


def share(name: str, unit: str, ours: Sequence[float], whole: Sequence[float], *, at_most: float, limit: float) -> Row:
    """A row whose figure is a part of ``whole``: at most ``at_most`` of it, and at most ``limit`` in its unit."""
    return compared(name, unit, ours, whole, "ours/theirs", ratio_at_most=at_most, ours_at_most=limit)
