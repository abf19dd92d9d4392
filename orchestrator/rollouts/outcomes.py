"""What becomes of a rollout: its key, its turns, its outcome, and the line it is stored as.

A stored rollout holds no clock and no random identifier, so the same run stores the same bytes however often it was
killed on the way.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.checked import check_crc, with_crc
from orchestrator.journal.durable import LineFile, sha256_of
from orchestrator.names import State, batch_name

Mode = Literal["train", "eval"]
PLAYS: Mapping[State, Mode] = {State.ROLLOUT: "train", State.MAYBE_EVALUATE: "eval"}
"""The states that play, and what their rollouts are for."""

TASK_SHA256_CHARACTERS = 16
_RAISED = re.compile(r"\w+( at [^:]+:\d+)?(?=: )")
"""How the error of a failed rollout begins: the exception's type and the agent's line, without its message."""


class Outcome(StrEnum):
    """How one attempt at a rollout ended; only ``succeeded`` is trained on."""

    SUCCEEDED = "succeeded"
    """The agent returned, with a finite reward and at least one valid turn."""
    FAILED = "failed"
    """The agent raised."""
    TIMED_OUT = "timed_out"
    """The agent did not return within ``rollout_timeout_seconds``."""
    EMPTY = "empty"
    """The agent returned without having called the model."""
    INVALID = "invalid"
    """The reward is missing or not finite, or a turn lacks token ids or logprobs or has unequal numbers of them."""


@dataclass(frozen=True, slots=True, order=True)
class RolloutKey:
    """Which rollout of the run this is: the same in every process that works on it."""

    batch: int
    mode: Mode
    group: int
    """Position of the task in the batch."""
    member: int
    """Position of the rollout in its group."""

    def __str__(self) -> str:
        return f"{batch_name(self.batch)}-{self.mode}-{self.group:04d}-{self.member:03d}"


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call as it was sampled."""

    prompt_tokens: tuple[int, ...]
    sampled_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per sampled token, under the weights of ``policy_version``."""
    policy_version: int
    stop_reason: str

    @property
    def valid(self) -> bool:
        """Whether there is a prompt, and one finite logprob for each of one or more sampled tokens."""
        return (
            bool(self.prompt_tokens)
            and 0 < len(self.sampled_tokens) == len(self.logprobs)
            and all(math.isfinite(logprob) for logprob in self.logprobs)
        )


@dataclass(frozen=True, slots=True)
class StoredRollout:
    """One finished attempt at a rollout: a line of ``rollouts/<batch>.<mode>.jsonl``."""

    key: RolloutKey
    attempt: int
    """0-based; grows with each retry, not with restarts of the process."""
    last: bool
    """Whether the rollout is finished with this attempt (no retry follows)."""
    outcome: Outcome
    reward: float | None
    """None where there is none, or where it is not finite."""
    turns: tuple[Turn, ...]
    error: str | None = None
    """What went wrong; None when succeeded. Its words may be the agent's: tell ``kind_of_error``."""
    task_sha256: str = ""
    """``task_sha256`` of the task that was played; empty where the task is not known."""
    rewards: tuple[Mapping[str, float | None], ...] = ()
    """Every reward the agent gave, in order, by dimension: the last one's first dimension is ``reward``."""
    traceback: str | None = None
    """Where the agent raised: its own frames, causes first, quoted prompts redacted."""

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were sampled, over all turns."""
        return sum(len(turn.sampled_tokens) for turn in self.turns)

    def to_json(self) -> str:
        """The stored line, without its newline: strict JSON, with its checksum as of ``with_crc``."""
        fields = asdict(self)
        for turn in fields["turns"]:  # JSON has no NaN
            turn["logprobs"] = [logprob if math.isfinite(logprob) else None for logprob in turn["logprobs"]]
        return with_crc(json.dumps({**fields.pop("key"), **fields}, allow_nan=False, separators=(",", ":")))

    @classmethod
    def from_json(cls, line: str) -> "StoredRollout":
        """The rollout that ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: the line is not such a rollout, or was changed since it was written.
        """
        check_crc(line)
        fields: dict[str, Any] = json.loads(line)
        return cls(
            key=RolloutKey(fields["batch"], fields["mode"], fields["group"], fields["member"]),
            attempt=fields["attempt"],
            last=fields["last"],
            outcome=Outcome(fields["outcome"]),
            reward=fields["reward"],
            turns=tuple(
                Turn(
                    tuple(turn["prompt_tokens"]),
                    tuple(turn["sampled_tokens"]),
                    read_logprobs(turn["logprobs"]),
                    turn["policy_version"],
                    turn["stop_reason"],
                )
                for turn in fields["turns"]
            ),
            error=fields["error"],
            task_sha256=fields["task_sha256"],
            rewards=tuple(fields.get("rewards", ())),  # the earliest lines have neither
            traceback=fields.get("traceback"),
        )


def read_logprobs(stored: Sequence[float | None]) -> tuple[float, ...]:
    """The logprobs of a stored turn: null stands for what was no finite number, and makes the turn invalid."""
    return tuple(math.nan if logprob is None else logprob for logprob in stored)


def task_sha256(task: Any) -> str:
    """By which a stored rollout knows its task again: the first 16 hexadecimal characters, whatever the keys' order."""
    return hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest()[:TASK_SHA256_CHARACTERS]


def count_outcomes(rollouts: Sequence[StoredRollout]) -> dict[str, int]:
    """How many of ``rollouts`` ended in each outcome, zeros included."""
    counts = {outcome.value: 0 for outcome in Outcome}
    for rollout in rollouts:
        counts[rollout.outcome] += 1
    return counts


def totals(rollouts: Sequence[StoredRollout]) -> dict[str, Any]:
    """What the journal keeps of a state's rollouts: outcomes of the finished, tokens of all attempts, the first error.

    Of the first error only the place and the kind are told; the stored line has it whole.
    """
    failed = [rollout for rollout in rollouts if rollout.last and rollout.outcome is not Outcome.SUCCEEDED]
    return {
        "outcomes": count_outcomes([rollout for rollout in rollouts if rollout.last]),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "prompt_tokens": sum(len(turn.prompt_tokens) for rollout in rollouts for turn in rollout.turns),
        "first_error": f"{failed[0].key}: {kind_of_error(failed[0])}" if failed else None,
    }


def kind_of_error(rollout: StoredRollout) -> str:
    """The outcome and why, e.g. ``failed (KeyError at my_agent.py:8)``, fit for the journal, the log and the console.

    An exception's message may quote a prompt, so where the agent raised only the type and the place are told; every
    other error is told whole, because its words are this program's own.
    """
    error = rollout.error or "no error was stored"
    if rollout.outcome is Outcome.FAILED:
        raised = _RAISED.match(error)
        error = raised[0] if raised else "of an unknown kind"
    return f"{rollout.outcome} ({error})"


def rollout_path(log_path: Path, batch: int, mode: Mode) -> Path:
    """Where the rollouts of ``batch`` are stored."""
    return log_path / "rollouts" / f"{batch_name(batch)}.{mode}.jsonl"


def read_rollouts(path: Path, *, sha256: str) -> list[StoredRollout]:
    """Every attempt in a finished file of rollouts.

    Raises:
        SideFileDamagedError: the file is missing, or is not the one that the journal speaks of.
    """
    if not path.exists():
        raise SideFileDamagedError(f"{path}: the stored rollouts are missing; restore the file from a backup")
    found = sha256_of(path)
    if found != sha256:
        raise SideFileDamagedError(
            f"{path}: sha256 is {found}, the journal says {sha256}: the file was changed since it was finished; "
            "restore it from a backup"
        )
    return [StoredRollout.from_json(line) for line in LineFile.read_lines(path)]


def check_lines(
    path: Path, lines: Sequence[str], keys: Set[RolloutKey], task_sha256s: Sequence[str]
) -> list[StoredRollout]:
    """The rollouts that ``lines`` of an unfinished file hold, each of ``keys`` and of its group's task.

    Raises:
        SideFileDamagedError: naming path and line.
    """
    advice = "Nothing was changed. Restore the file from a copy, or remove it to run all of its rollouts again"
    stored: dict[tuple[RolloutKey, int], StoredRollout] = {}
    for number, line in enumerate(lines, start=1):
        try:
            rollout = StoredRollout.from_json(line)
        except (ValueError, KeyError, TypeError) as error:
            raise SideFileDamagedError(f"{path}, line {number}: not a stored rollout ({error!r}). {advice}") from error
        if rollout.key not in keys:
            raise SideFileDamagedError(
                f"{path}, line {number}: rollout {rollout.key} is none of this batch's {len(keys)} rollouts. {advice}"
            )
        expected = task_sha256s[rollout.key.group]
        if rollout.task_sha256 != expected:
            raise SideFileDamagedError(
                f"{path}, line {number}: rollout {rollout.key} played the task of sha256 {rollout.task_sha256!r}, but "
                f"the batch's is now {expected!r}. Nothing was changed. Go back to the old tasks (dataset, seed, "
                "shuffle), or delete the file to sample the batch again"
            )
        if (rollout.key, rollout.attempt) in stored:
            raise SideFileDamagedError(
                f"{path}, line {number}: attempt {rollout.attempt} of rollout {rollout.key} is stored twice. {advice}"
            )
        stored[rollout.key, rollout.attempt] = rollout
    return list(stored.values())
