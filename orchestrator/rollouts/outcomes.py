"""What becomes of a rollout: its key, its turns, its outcome, and the line it is stored as.

A stored rollout holds no clock and no random identifier, so the same run stores the same bytes however often it was
killed on the way.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.durable import LineFile, sha256_of
from orchestrator.names import batch_name

Mode = Literal["train", "eval"]


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
    """What went wrong, without prompts or completions; None when succeeded."""

    @property
    def sampled_tokens(self) -> int:
        """How many tokens were sampled, over all turns."""
        return sum(len(turn.sampled_tokens) for turn in self.turns)

    def to_json(self) -> str:
        """The stored line, without its newline: strict JSON."""
        fields = asdict(self)
        return json.dumps({**fields.pop("key"), **fields}, allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "StoredRollout":
        """The rollout that ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: the line is not such a rollout.
        """
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
                    tuple(turn["logprobs"]),
                    turn["policy_version"],
                    turn["stop_reason"],
                )
                for turn in fields["turns"]
            ),
            error=fields["error"],
        )


def count_outcomes(rollouts: Sequence[StoredRollout]) -> dict[str, int]:
    """How many of ``rollouts`` ended in each outcome, zeros included."""
    counts = {outcome.value: 0 for outcome in Outcome}
    for rollout in rollouts:
        counts[rollout.outcome] += 1
    return counts


def totals(rollouts: Sequence[StoredRollout]) -> dict[str, Any]:
    """What the journal keeps of a state's rollouts: outcomes of the finished, tokens of all attempts, the first error.

    An exception's message may quote a prompt, so of the first error only the place and the kind are told; the stored
    line has it whole.
    """
    failed = [rollout for rollout in rollouts if rollout.last and rollout.outcome is not Outcome.SUCCEEDED]
    return {
        "outcomes": count_outcomes([rollout for rollout in rollouts if rollout.last]),
        "sampled_tokens": sum(rollout.sampled_tokens for rollout in rollouts),
        "prompt_tokens": sum(len(turn.prompt_tokens) for rollout in rollouts for turn in rollout.turns),
        "first_error": f"{failed[0].key}: {failed[0].outcome} ({_kind_of_error(failed[0])})" if failed else None,
    }


def _kind_of_error(rollout: StoredRollout) -> str:
    """The exception's type where the agent raised; the whole error otherwise, whose words are this program's own."""
    error = rollout.error or "no error was stored"
    return error.partition(":")[0] if rollout.outcome is Outcome.FAILED else error


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
