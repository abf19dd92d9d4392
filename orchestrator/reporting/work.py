"""What a run was charged for, what of it lives on in the run, and what kills and failures cost: made, kept and lost.

Made is what the usage file counts, kept is what the journal, the stored rollouts and the turns of unfinished ones hold.
A train step that is redone after a restore is therefore made twice and kept once; its second making is counted where it
happened, in the batch and state that needed the weights.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.backends.usage import USAGE_NAME, Event, UsageLine, read_usage
from orchestrator.journal.plan import stored_rollouts, stored_turns
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import RunState
from orchestrator.names import State, batch_name

SAVES = ("save_state", "save_weights_for_sampler")
DELETION = "delete_checkpoint_from_tinker_path"

Cell = tuple[int, str]
"""A batch and a state."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of one thing was made, kept and lost. What a state under way has made so far is neither of the two."""

    made: int = 0
    """Asked for and not refused; of sampled tokens, received."""
    kept: int = 0
    lost: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.made + other.made, self.kept + other.kept, self.lost + other.lost)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done in one batch, or in all of them."""

    calls: int = 0
    """Requests made, whatever became of them."""
    refused_calls: int = 0
    """The backend said that it did not carry them out."""
    unanswered_calls: int = 0
    """Nobody got their reply: they were in flight when their process ended, or were given up. They may be charged."""
    prompt_tokens: int = 0
    """Sent to be continued or scored."""
    sampled_tokens: Amount = Amount()
    """Lost: of turns that were not stored or not asked for again, of late replies, or after an agent's stop string."""
    trained_tokens: Amount = Amount()
    """Input tokens of datums sent."""
    optim_steps: Amount = Amount()
    saves: Amount = Amount()
    """Of samplers and of states with their optimizer; lost are those that had to be made again."""
    deletions: int = 0
    """Of what was saved."""

    @property
    def whole(self) -> bool:
        """Whether no more was kept than was counted."""
        amounts = (self.sampled_tokens, self.trained_tokens, self.optim_steps, self.saves)
        return all(amount.kept <= amount.made for amount in amounts)

    def __add__(self, other: "Work") -> "Work":
        return Work(*(getattr(self, name) + getattr(other, name) for name in Work.__slots__))


@dataclass(frozen=True, slots=True)
class WorkDone:
    """The work of a whole run."""

    total: Work
    batches: Mapping[int, Work]
    """By the batch that the run was in."""
    whole: bool
    """False: more was kept than was counted, so a part of the run was not counted, and more may have been lost."""
    unreadable_lines: int
    """Of the usage file; they are left out."""

    @property
    def saves_alive(self) -> int:
        """Saves that were not deleted, give or take those in flight at a kill; some may have expired."""
        return self.total.saves.made - self.total.deletions

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the names of the fields and properties."""
        batches = {str(batch): asdict(work) for batch, work in self.batches.items()}
        return asdict(self) | {"batches": batches, "saves_alive": self.saves_alive}


def work_lost(work: WorkDone | None) -> str:
    """What was lost, in words, e.g. ``312 of 45,312 sampled tokens (0.7 %), 4 of 460 optimizer steps``."""
    if work is None:
        return "not recorded"
    total = work.total
    parts = []
    if total.sampled_tokens.lost:
        percent = 100 * total.sampled_tokens.lost / total.sampled_tokens.made
        parts.append(f"{_of(total.sampled_tokens)} sampled tokens ({percent:.1f} %)")
    if total.optim_steps.lost:
        parts.append(f"{_of(total.optim_steps)} optimizer steps")
    if total.trained_tokens.lost:
        parts.append(f"{_of(total.trained_tokens)} trained tokens")
    if total.saves.lost:
        parts.append(f"{_of(total.saves)} saves")
    if total.unanswered_calls:
        parts.append(f"{total.unanswered_calls:,} of {total.calls:,} calls never answered")
    if not parts:
        made = f"{total.sampled_tokens.made:,} sampled tokens, none of {total.optim_steps.made:,} optimizer steps"
        parts.append(f"none of {made}")
    told = ", ".join(parts)
    if work.unreadable_lines:
        told += f"; unreadable lines of {USAGE_NAME}: {work.unreadable_lines:,}"
    return told if work.whole else f"{told}; a part of the run was not recorded"


def read_work(log_path: Path, records: Sequence[Record], run: RunState, *, live: bool) -> WorkDone | None:
    """The work of the run in ``log_path``; None: there is no usage file, or none that can be read.

    ``run`` is folded from ``records``. While a process is at work (``live``), nothing that a state made counts as
    lost before the state ends, nor does a call in flight.

    Raises:
        SideFileDamagedError: a line of the stored rollouts of the state under way is not one.
    """
    if not (log_path / USAGE_NAME).exists():
        return None
    # Before the usage file: a process at work may add to both meanwhile, and first to that one.
    kept = _kept(log_path, records, run)
    left = {(batch, state.value) for batch, facts in run.batches.items() for state in facts.results}
    spent: dict[Cell, _Spent] = defaultdict(_Spent)
    in_flight: Counter[Cell] = Counter()
    unreadable = 0
    try:
        for line in read_usage(log_path):
            if line is None:
                unreadable += 1
                continue
            cell = (line.batch, line.state)
            spent[cell].add(line)
            if live and line.process == run.processes - 1:
                in_flight[cell] += 1 if line.event is Event.ASKED else -1
    except OSError:
        return None
    batches: dict[int, Work] = {}
    whole = True
    for cell in sorted(spent.keys() | kept.keys()):
        batch = cell[0]
        work = spent[cell].work(kept[cell], in_flight=in_flight[cell], left=cell in left, live=live)
        whole &= work.whole
        batches[batch] = batches.get(batch, Work()) + work
    return WorkDone(sum(batches.values(), start=Work()), batches, whole, unreadable)


@dataclass(slots=True)
class _Kept:
    """What the run holds of one batch and state."""

    sampled_tokens: int = 0
    trained_tokens: int = 0
    optim_steps: int = 0
    saves: int = 0


@dataclass(slots=True)
class _Spent:
    """The sum of the lines of one batch and state."""

    events: Counter[tuple[str, Event]] = field(default_factory=Counter)
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0

    def add(self, line: UsageLine) -> None:
        self.events[line.request, line.event] += 1
        self.sampled_tokens += line.sampled_tokens
        sign = 1 if line.event is Event.ASKED else -1  # only the lines asked and refused have these two
        self.prompt_tokens += sign * line.prompt_tokens
        self.trained_tokens += sign * line.trained_tokens

    def work(self, kept: _Kept, *, in_flight: int, left: bool, live: bool) -> Work:
        """``left``: the state has ended."""
        pending = live and not left
        counts: Counter[Event] = Counter()
        for (_, event), count in self.events.items():
            counts[event] += count
        refused = counts[Event.REFUSED] + counts[Event.FOUND]
        found = sum(self.events[request, Event.FOUND] for request in SAVES)
        saves = sum(self._made(request) for request in SAVES)
        # A name that is taken proves that a save was carried out, whose own request may pass for refused: the SDK
        # repeats a request whose reply was lost by itself.
        saves += min(found, max(0, kept.saves - saves))
        return Work(
            calls=counts[Event.ASKED],
            refused_calls=refused,
            unanswered_calls=counts[Event.ASKED] - counts[Event.ANSWERED] - refused - in_flight,
            prompt_tokens=self.prompt_tokens,
            sampled_tokens=_amount(self.sampled_tokens, kept.sampled_tokens, pending=pending),
            trained_tokens=_amount(self.trained_tokens, kept.trained_tokens, pending=pending),
            optim_steps=_amount(self._made("optim_step"), kept.optim_steps, pending=pending),
            # What a killed process saved and did not record is found again by its name.
            saves=_amount(saves, kept.saves, pending=not left),
            deletions=self._made(DELETION),
        )

    def _made(self, request: str) -> int:
        refused = self.events[request, Event.REFUSED] + self.events[request, Event.FOUND]
        return self.events[request, Event.ASKED] - refused


def _kept(log_path: Path, records: Sequence[Record], run: RunState) -> dict[Cell, _Kept]:
    kept: dict[Cell, _Kept] = defaultdict(_Kept)
    for batch, facts in run.batches.items():
        for state, result in facts.results.items():
            cell = kept[batch, state.value]
            if state in {State.ROLLOUT, State.MAYBE_EVALUATE}:
                cell.sampled_tokens = result.get("sampled_tokens", 0)
            elif state is State.TRAIN_STEP:
                cell.optim_steps = result.get("optim_steps", 0)
                cell.trained_tokens = result.get("trained_tokens", 0)
            elif state is State.SWAP_SAMPLER:
                cell.saves += not facts.results[State.TRAIN_STEP]["skipped"]
            elif state is State.PUBLISH_MODEL:
                cell.saves += batch == run.first_batch  # the sampler that a run begins with
    mode = {State.ROLLOUT: "train", State.MAYBE_EVALUATE: "eval"}.get(run.state)
    if mode is not None:
        name = f"{batch_name(run.batch)}.{mode}.jsonl"
        stored = stored_rollouts(log_path / "rollouts" / name)
        turns = stored_turns(log_path / "turns" / name, stored) or ()
        kept[run.batch, run.state.value].sampled_tokens = sum(turns, sum(each["sampled_tokens"] for each in stored))
    place = (0, "")
    for record in records:
        if record.kind is Kind.STATE_ENTERED:
            place = (record.fields["batch"], record.fields["state"])
        elif record.kind is Kind.CHECKPOINT_SAVED:
            kept[place].saves += 1
    return kept


def _amount(made: int, kept: int, *, pending: bool) -> Amount:
    return Amount(made, kept, lost=0 if pending else max(0, made - kept))


def _of(amount: Amount) -> str:
    return f"{amount.lost:,} of {amount.made:,}"
