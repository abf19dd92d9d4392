"""The verdict of a chaos campaign in words: where the kills fell, what was kept and redone, and what that proves."""

from collections.abc import Iterator

from rich import box
from rich.table import Table

from orchestrator.chaos.campaign import CONFIDENCE, Verdict, bound
from orchestrator.chaos.rounds import START_UP, Kill
from orchestrator.names import CYCLE

PAID = {"sample": "model calls", "optim_step": "optimizer steps", "save_state": "checkpoints saved"}
"""The requests that the words tell of."""


def verdict_table(verdict: Verdict) -> Table:
    """One row for each state in which a kill fell."""
    table = Table("killed in", box=box.SIMPLE)
    for name in ("kills", "finished rollouts kept", "turns kept", "rollouts run again", "train steps redone"):
        table.add_column(name, justify="right")
    kills = [kill for played in verdict.rounds for kill in played.kills]
    for state in (START_UP, *(state.value for state in CYCLE), "Finished"):
        fallen = [kill for kill in kills if kill.state == state]
        if fallen:
            table.add_row(state, *_sums(fallen))
    table.add_section()
    table.add_row("all", *_sums(kills))
    return table


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """What was paid for, and what it comes to."""
    num_rounds, num_kills = len(verdict.rounds), verdict.num_kills
    for request, words in PAID.items():
        made, needed = verdict.requests[request], num_rounds * verdict.reference.requests.get(request, 0)
        repeated = f", {(made - needed) / num_kills:.2f} more for each kill" if num_kills else ""
        yield f"{words}: {made:,}, where {num_rounds:,} undisturbed runs make {needed:,}{repeated}"
    failed = verdict.failed
    if failed is not None:
        kills = ", ".join(map(str, failed.kills)) or "none"
        yield f"FAIL {failed.name}, seed {verdict.seed}, {failed.difference}"
        yield f"its kills, in order: {kills}"
        yield f"the run is kept in {verdict.folder / failed.name}; the same command with only={failed.name} repeats it"
    elif num_kills:
        struck = {kill.state for played in verdict.rounds for kill in played.kills}
        spared = [state.value for state in CYCLE if state.value not in struck]
        if spared:
            yield f"no kill fell in {', '.join(spared)}: every_point=true or more kills would"
        num_runs = verdict.num_killed_runs
        yield (
            f"PASS {num_kills:,} kills in {num_runs:,} runs, no difference, in {verdict.seconds:,.0f} s: with "
            f"{CONFIDENCE:.0%} confidence fewer than {bound(num_runs):.2%} of runs killed like these come out "
            f"differently, or, taking each kill for a trial of its own, {bound(num_kills):.2%} of kills change anything"
        )
    else:
        yield "no run was killed, so nothing is proved"


def _sums(kills: list[Kill]) -> list[str]:
    sums = (
        len(kills),
        sum(kill.kept_rollouts for kill in kills),
        sum(kill.kept_turns for kill in kills),
        sum(kill.missing_rollouts for kill in kills),
        sum(kill.redone_batches for kill in kills),
    )
    return [f"{number:,}" for number in sums]
