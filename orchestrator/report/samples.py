"""Which rollouts a report shows, chosen by rule: the best and the worst of each group, of a few telling batches."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.durable import LineFile
from orchestrator.journal.recovery import RunState
from orchestrator.names import State
from orchestrator.report.model import Sample, ShownRollout, ShownTurn
from orchestrator.report.texts import Texts
from orchestrator.rollouts.outcomes import (
    PLAYS,
    Mode,
    Outcome,
    StoredRollout,
    Turn,
    kind_of_error,
    read_rollouts,
    rollout_path,
)

MAX_ROLLOUTS = 60
MAX_TURNS = 30
"""Of one rollout."""
MAX_TURN_TOKENS = 500
"""Whose logprobs are shown, of one turn."""
MAX_TURN_CHARACTERS = 6_000
"""Of a prompt, and of a reply."""
MAX_LOGPROBS = 60_000
MAX_CHARACTERS = 1_500_000
"""Of the whole page."""

Read = Callable[[str, Callable[[], list[StoredRollout]]], list[StoredRollout] | None]
"""Carries out a reading of what is named; None: it could not be read, which has been noted."""


def choose_rollouts(
    run: RunState, log_path: Path, *, texts: Texts | None, why_no_texts: str | None, read: Read
) -> Sample:
    """The newest two batches' rollouts, the first batch's, and those of the last and of the first evaluation.

    Nothing but the stored rollouts decides which are shown, in which order, and where it ends. ``texts`` None: only
    numbers are shown.
    """
    room = _Room(MAX_LOGPROBS, MAX_CHARACTERS)
    shown: list[ShownRollout] = []
    stored = 0
    for batch, mode in _telling(run):
        rollouts = read(f"rollouts of batch {batch} ({mode})", partial(_stored, run, log_path, batch, mode))
        finished = sorted((each for each in rollouts or () if each.last), key=lambda each: each.key)
        stored += len(finished)
        for why, rollout in _extremes(finished):
            if len(shown) < MAX_ROLLOUTS:
                shown.append(_show(rollout, why, texts, room))
            else:
                room.short = True
    return Sample(tuple(shown), stored, room.short, why_no_texts)


def _telling(run: RunState) -> list[tuple[int, Mode]]:
    """Batches and modes, the most telling first."""
    chosen: list[tuple[int, Mode]] = []
    if run.state in PLAYS and run.entered:
        chosen.append((run.batch, PLAYS[run.state]))  # what is stored of it so far
    played = [batch for batch, facts in run.batches.items() if State.ROLLOUT in facts.results]
    evaluated = [
        batch for batch, facts in run.batches.items() if facts.results.get(State.MAYBE_EVALUATE, {}).get("evaluated")
    ]
    ordered: list[tuple[int, Mode]] = [(batch, "train") for batch in reversed(played[-2:])]
    ordered += [(batch, "eval") for batch in evaluated[-1:]]
    ordered += [(batch, "train") for batch in played[:1]]
    ordered += [(batch, "eval") for batch in evaluated[:1]]
    return list(dict.fromkeys([*chosen, *ordered]))


def _stored(run: RunState, log_path: Path, batch: int, mode: Mode) -> list[StoredRollout]:
    path = rollout_path(log_path, batch, mode)
    state = next(state for state, plays in PLAYS.items() if plays == mode)
    result = run.result(batch, state)
    if result is not None:
        return read_rollouts(path, sha256=result["sha256"])
    rollouts = []
    for number, line in enumerate(LineFile.read_lines(path), start=1):
        try:
            rollouts.append(StoredRollout.from_json(line))
        except (ValueError, KeyError, TypeError) as error:
            raise SideFileDamagedError(
                f"{path}, line {number}: not a stored rollout ({type(error).__name__}). Restore the file from a copy"
            ) from error
    return rollouts


def _extremes(rollouts: Sequence[StoredRollout]) -> Iterator[tuple[str, StoredRollout]]:
    """Of each group the best, the worst and the first that did not succeed; of equals the lowest member."""
    for _, group in groupby(rollouts, key=lambda rollout: rollout.key.group):
        members = list(group)
        rewarded = [member for member in members if member.outcome is Outcome.SUCCEEDED and member.reward is not None]
        if rewarded:
            best = max(rewarded, key=_reward)
            worst = min(rewarded, key=_reward)
            if best is worst:
                yield ("equal" if len(rewarded) > 1 else "only"), best
            else:
                yield "best", best
                yield "worst", worst
        failed = next((member for member in members if member.outcome is not Outcome.SUCCEEDED), None)
        if failed is not None:
            yield failed.outcome.value, failed


def _reward(rollout: StoredRollout) -> float:
    return -math.inf if rollout.reward is None else rollout.reward


@dataclass(slots=True)
class _Room:
    """What the page still has room for."""

    logprobs: int
    characters: int
    short: bool = False

    def take_logprobs(self, wanted: int) -> int:
        granted = min(wanted, MAX_TURN_TOKENS, self.logprobs)
        self.logprobs -= granted
        self.short |= granted < wanted
        return granted

    def take_text(self, text: str) -> str:
        """``text``, or its beginning and end with how much was left out between them."""
        granted = min(len(text), MAX_TURN_CHARACTERS, self.characters)
        self.characters -= granted
        if granted == len(text):
            return text
        self.short = True
        half = granted // 2
        return f"{text[:half]}\n[… {len(text) - 2 * half:,} characters left out …]\n{text[len(text) - half :]}"


def _show(rollout: StoredRollout, why: str, texts: Texts | None, room: _Room) -> ShownRollout:
    key = rollout.key
    turns = []
    context: tuple[int, ...] = ()
    for turn in rollout.turns[:MAX_TURNS]:
        turns.append(_turn(turn, context, texts, room))
        context = turn.prompt_tokens + turn.sampled_tokens
    left_out = len(rollout.turns) - len(turns)
    room.short |= left_out > 0
    error = None
    if rollout.error is not None:
        error = kind_of_error(rollout) if texts is None else f"{rollout.outcome}: {rollout.error}"
    return ShownRollout(
        key=str(key),
        batch=key.batch,
        mode=key.mode,
        group=key.group,
        member=key.member,
        why=why,
        outcome=rollout.outcome.value,
        reward=rollout.reward,
        attempt=rollout.attempt,
        sampled_tokens=rollout.sampled_tokens,
        error=error,
        traceback=None if texts is None or rollout.traceback is None else room.take_text(rollout.traceback),
        turns=tuple(turns),
        turns_left_out=left_out,
    )


def _turn(turn: Turn, context: tuple[int, ...], texts: Texts | None, room: _Room) -> ShownTurn:
    continued = turn.prompt_tokens[: len(context)] == context
    new = turn.prompt_tokens[len(context) :] if continued else turn.prompt_tokens
    granted = room.take_logprobs(len(turn.logprobs))
    finite = [logprob if math.isfinite(logprob) else None for logprob in turn.logprobs]
    known = [logprob for logprob in finite if logprob is not None]
    return ShownTurn(
        prompt_tokens=len(turn.prompt_tokens),
        new_prompt_tokens=len(new),
        sampled_tokens=len(turn.sampled_tokens),
        policy_version=turn.policy_version,
        stop_reason=turn.stop_reason,
        mean_logprob=sum(known) / len(known) if known and len(known) == len(finite) else None,
        logprobs=tuple(finite[:granted]),
        prompt=None if texts is None else room.take_text(texts.of(new)),
        reply=None if texts is None else room.take_text(texts.of(turn.sampled_tokens)),
        token_texts=None if texts is None else tuple(texts.of([token]) for token in turn.sampled_tokens[:granted]),
    )
