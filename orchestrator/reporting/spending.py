"""What a run has spent so far, per batch and state: tokens that it is charged for, saves, and time at work.

Tokens are those of the usage file, which counts wasted ones too; where that file is missing or has lost lines, no less
than what the journal says was kept. Time is from a process's first record to the last that is heard of it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.backends.usage import Event, UsageLine, read_timed_usage
from orchestrator.journal.records import Kind, Record
from orchestrator.names import State

SAVES = frozenset({"save_state", "save_weights_for_sampler"})


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens and saves, which are what a service charges for."""

    prompt_tokens: int = 0
    """Sent to be continued or scored."""
    sampled_tokens: int = 0
    trained_tokens: int = 0
    """Input tokens of datums sent, every pass counted."""
    saves: int = 0
    """Of samplers and of states with their optimizer."""

    @property
    def tokens(self) -> int:
        """What ``max_tokens_total`` limits."""
        return self.prompt_tokens + self.sampled_tokens + self.trained_tokens

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, name) + getattr(other, name) for name in Spent.__slots__))

    def at_least(self, other: "Spent") -> "Spent":
        """The larger one of each."""
        return Spent(*(max(getattr(self, name), getattr(other, name)) for name in Spent.__slots__))

    def words(self) -> str:
        """E.g. ``1,200 prompt, 350 sampled, 4,100 trained tokens, 3 saves``; what is nothing is left out."""
        amounts = {"prompt": self.prompt_tokens, "sampled": self.sampled_tokens, "trained": self.trained_tokens}
        told = ", ".join(f"{tokens:,} {name}" for name, tokens in amounts.items() if tokens)
        saves = f"{self.saves:,} {'save' if self.saves == 1 else 'saves'}" if self.saves else ""
        return ", ".join(part for part in (f"{told} tokens" if told else "", saves) if part) or "nothing"


def spent_by(line: UsageLine) -> Spent:
    """What one line of the usage file adds; a refusal takes back what its request had added."""
    sign = {Event.ASKED: 1, Event.ANSWERED: 0}.get(line.event, -1)
    return Spent(
        sign * line.prompt_tokens,
        line.sampled_tokens,
        sign * line.trained_tokens,
        sign * (line.request in SAVES),
    )


@dataclass(frozen=True, slots=True)
class Spending:
    """What a whole run has spent."""

    cells: Mapping[tuple[int, State], Spent]
    """By the batch and state that the run was in, in the order of the machine."""
    wall_seconds: float
    """Of all processes together."""

    @property
    def total(self) -> Spent:
        """Over all batches and states."""
        return sum(self.cells.values(), start=Spent())

    @property
    def states(self) -> dict[State, Spent]:
        """Over all batches; states that spent nothing are left out."""
        totals = {state: Spent() for state in State}
        for (_, state), spent in self.cells.items():
            totals[state] += spent
        return {state: spent for state, spent in totals.items() if spent != Spent()}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: ``total``, ``states``, ``batches`` (each by state) and ``wall_seconds``."""
        batches: dict[str, dict[str, Any]] = defaultdict(dict)
        for (batch, state), spent in self.cells.items():
            batches[str(batch)][state.value] = asdict(spent)
        return {
            "total": asdict(self.total) | {"tokens": self.total.tokens},
            "states": {state.value: asdict(spent) for state, spent in self.states.items()},
            "batches": dict(batches),
            "wall_seconds": self.wall_seconds,
        }


def read_spending(log_path: Path, records: Sequence[Record]) -> Spending:
    """What the run of ``records``, in ``log_path``, has spent; nothing is written."""
    cells = _kept(records)
    used: dict[tuple[int, State], Spent] = defaultdict(Spent)
    last_heard: dict[int, str] = {}
    try:
        for at, line in read_timed_usage(log_path):
            if line is not None and line.state in {*State}:
                used[line.batch, State(line.state)] += spent_by(line)
                last_heard[line.process] = at
    except OSError:  # then only what was kept is known
        last_heard = {}
    for cell, spent in used.items():
        cells[cell] = cells.get(cell, Spent()).at_least(spent)
    order = list(State)
    ordered = sorted(cells, key=lambda cell: (cell[0], order.index(cell[1])))
    return Spending({cell: cells[cell] for cell in ordered if cells[cell] != Spent()}, _wall(records, last_heard))


def _kept(records: Sequence[Record]) -> dict[tuple[int, State], Spent]:
    """What the results of states say, which leaves out all that was wasted."""
    kept: dict[tuple[int, State], Spent] = {}
    for record in records:
        if record.kind is Kind.TRANSITION:
            result = record.fields["result"]
            names = ("prompt_tokens", "sampled_tokens", "trained_tokens")
            kept[record.fields["batch"], State(record.fields["source"])] = Spent(
                *(result.get(name, 0) for name in names)
            )
    return kept


def _wall(records: Sequence[Record], last_heard: Mapping[int, str]) -> float:
    """From each process's first record to its last one or its last request, summed.

    A killed process is heard of last when it asks or is answered; without that, one which is killed again and again in
    a long state would seem to have taken no time.
    """
    spans: list[list[datetime]] = []
    for record in records:
        at = datetime.fromisoformat(record.at)
        if record.kind is Kind.PROCESS_STARTED:
            spans.append([at, at])
        elif spans:
            spans[-1][1] = at
    for process, heard in last_heard.items():
        if process < len(spans):
            spans[process][1] = max(spans[process][1], datetime.fromisoformat(heard))
    return sum((ended - started).total_seconds() for started, ended in spans)
