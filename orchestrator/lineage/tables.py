"""A replayed train step beside the original, as tables for people."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from orchestrator.lineage.replay import Replay, Side

OF_ROLLOUTS = ("rollout/", "env/")
"""Metrics that are shown only where they differ: most settings leave them alone."""
SAME = Text("same", style="dim")


def replay_tables(replay: Replay) -> list[Table]:
    """The step as a whole, and each of its optimizer steps."""
    whole = Table(title=f"train step of batch {replay.batch}", title_justify="left")
    whole.add_column("of the step as a whole", no_wrap=True)
    for name in ("original", "replay", "difference"):
        whole.add_column(name, justify="right")
    one, other = replay.original.facts(), replay.replay.facts()
    for name in {**one, **other}:
        if not name.startswith(OF_ROLLOUTS) or one.get(name) != other.get(name):
            _add(whole, name, one.get(name), other.get(name))
    for name, (first, second) in replay.shifts.items():
        _add(whole, f"logprob shift: {name}", first, second)
    return [whole, *_updates(replay)]


def replay_lines(replay: Replay) -> Iterator[str]:
    """What the tables do not say, and the verdict last."""
    for name, side in (("original", replay.original), ("replay", replay.replay)):
        if side.skipped is not None:
            yield f"the {name} takes no step: {side.skipped}"
    if replay.unlike_journal:
        names = ", ".join(replay.unlike_journal)
        yield (
            f"the original, repeated now, gives other numbers than were journaled for {names}: this backend does not "
            "compute the same twice, so differences as small say nothing"
        )
    if replay.changed_datums:
        yield f"datums: {replay.changed_datums:,} are not the same in both"
    if replay.apart is not None and replay.apart[1] > 0:
        yield f"logprobs after it: {replay.apart[0]:.3g} apart in the mean, {replay.apart[1]:.3g} at most"
    yield "it differs" if replay.differs else "no difference, bit for bit"


def _updates(replay: Replay) -> Iterator[Table]:
    """A row an optimizer step; each number of the original, then of the replay."""
    sides = [_rows(replay.original), _rows(replay.replay)]
    names = list(dict.fromkeys(name for rows in sides for row in rows for name in row))
    if not names:
        return
    table = Table("step", title="its optimizer steps, original | replay", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for index in range(max(map(len, sides))):
        cells = []
        for name in names:
            first, second = (rows[index].get(name) if index < len(rows) else None for rows in sides)
            cells.append(f"{_number(first)} | {SAME.plain if first == second else _number(second)}")
        table.add_row(str(index), *cells)
    yield table


def _rows(side: Side) -> list[dict[str, float]]:
    return [] if side.measured is None else [dict(update) for update in side.measured.updates]


def _add(table: Table, name: str, one: float | None, other: float | None) -> None:
    difference = SAME if one == other else Text("" if one is None or other is None else f"{other - one:+.6g}")
    table.add_row(name, _number(one), _number(other), difference)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
