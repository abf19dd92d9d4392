"""What a report tells of a run, in plain values: no HTML, no chart, no file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.journal.recovery import RunState
from orchestrator.reporting.summary import RunSummary
from orchestrator.reporting.work import WorkDone
from orchestrator.verify import Verdict

START_UP = "start-up"
"""What a process does before it enters its first state, as the timeline calls it."""


@dataclass(frozen=True, slots=True)
class Span:
    """One stay in one state. Times are seconds of work: the times when no process was at work are left out."""

    process: int
    """0-based position among the processes of the run."""
    batch: int
    state: str
    """Of the machine, or ``START_UP``."""
    start_seconds: float
    end_seconds: float
    ending: str
    """``left`` for the next state, or how its process ended in it: killed, interrupted, failed, ..., at work."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the run, from its first record to its last sign of life."""

    number: int
    started_at: str
    """As the journal has it."""
    took_up: str
    """Where it began, e.g. ``Rollout of batch 6``; ``a new run``."""
    idle_seconds: float
    """How long nobody was at work before it."""
    start_seconds: float
    end_seconds: float
    ending: str
    """killed, interrupted, failed, refused, budget, finished, or ``at work``."""
    ended_in: str
    error: str | None
    """What it said of its end, if it could."""
    checkpoint: str | None
    """The newest checkpoint that it could restore weights from; None: there was none."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """What became of one checkpoint."""

    name: str
    checkpoint_kind: str
    batch: int
    """Batches trained in it."""
    saved_at: str
    process: int
    """Which one saved it."""
    dropped_in_batch: int | None
    """None: the journal holds it to be alive."""
    fate: str
    """``alive``, or why it was dropped."""
    expires_at: str | None
    state_path: str


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """One model call of a rollout that is shown."""

    prompt_tokens: int
    new_prompt_tokens: int
    """Those that the conversation had not held before."""
    sampled_tokens: int
    policy_version: int
    stop_reason: str
    mean_logprob: float | None
    """Of the sampled tokens, those that are not shown included; None: one of them is no number."""
    logprobs: tuple[float | None, ...]
    """One a sampled token, from the first on; fewer than ``sampled_tokens`` where the page would grow too large."""
    prompt: str | None
    """The new part, special tokens included; None: texts are not shown."""
    reply: str | None
    token_texts: tuple[str, ...] | None
    """One for each of ``logprobs``."""


@dataclass(frozen=True, slots=True)
class ShownRollout:
    """One rollout that is shown, and why."""

    key: str
    batch: int
    mode: str
    group: int
    member: int
    why: str
    """``best`` or ``worst`` of its group, ``equal`` where no reward differs, or its outcome."""
    outcome: str
    reward: float | None
    attempt: int
    sampled_tokens: int
    error: str | None
    """By type and place; with its message where texts are shown."""
    traceback: str | None
    turns: tuple[ShownTurn, ...]
    turns_left_out: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The rollouts that are shown."""

    rollouts: tuple[ShownRollout, ...]
    stored: int
    """How many the files hold that they were chosen from."""
    cut: bool
    """Whether some texts, logprobs or rollouts were left out to keep the page small."""
    texts: str | None
    """Why texts were asked for and are not shown; None: they are, or were not asked for."""


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    log_path: str
    made_at: str
    doing: str
    """What the run does at the moment, in words."""
    tone: str
    """``good``, ``busy`` or ``bad``: how ``doing`` is to be taken."""
    run: RunState
    summary: RunSummary
    kills: int
    rows: Sequence[Mapping[str, Any]]
    """Those of ``metrics.jsonl``, as the journal gives them."""
    processes: Sequence[Process]
    spans: Sequence[Span]
    checkpoints: Sequence[SavedCheckpoint]
    plan: Sequence[str] | None
    """What the same command would do, in words; None: it cannot be told."""
    work: WorkDone | None
    sample: Sample
    with_prompts: bool
    verdict: Verdict | None
    """None: the run directory was not judged."""
    unjudged: str
    """Why not."""
    story: Sequence[str]
    """The noteworthy records, a line each."""
    problems: Sequence[str]
    """What could not be read, and is therefore missing above."""
