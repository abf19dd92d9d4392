"""Where sampled turns are kept until their attempt is over, and where each call's sampling seed comes from."""

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from orchestrator.rollouts.outcomes import RolloutKey, Turn


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of an attempt that is under way."""

    rollout_id: str
    attempt_id: str
    prompt_tokens: tuple[int, ...]
    repeat: int
    """How many times this attempt had already asked exactly this prompt."""
    seed: int
    """31 bits; the same whenever the same run, rollout and attempt ask this prompt for the same time."""


@dataclass(slots=True)
class _Attempt:
    key: RolloutKey
    number: int
    asked: Counter[tuple[int, ...]] = field(default_factory=Counter)
    in_flight: int = 0
    overlapped: bool = False
    """Whether two calls were ever in flight at once."""
    turns: list[tuple[tuple[int, ...], int, int, Turn]] = field(default_factory=list)

    def in_order(self) -> tuple[Turn, ...]:
        """As they happened where they happened one after another, else by their prompts."""
        turns = sorted(self.turns, key=lambda entry: entry[:3]) if self.overlapped else self.turns
        return tuple(entry[-1] for entry in turns)


class Capture:
    """The turns of the attempts under way, keyed by Agent-lightning's rollout and attempt id.

    Safe to share between threads: the gateway records from its own, the runners collect from theirs. Nothing in it
    depends on which of several calls arrives or finishes first: seeds are hashes of what was asked, and the turns of an
    attempt that had several in flight at once are ordered by their prompts. Compared as token sequences a prompt comes
    right before the ones that extend it, so each conversation's turns stand together and in the order they happened.
    """

    def __init__(self, *, run_seed: int) -> None:
        self._run_seed = run_seed
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        self._late_turns = 0
        self._lock = Lock()

    @property
    def late_turns(self) -> int:
        """How many turns were dropped because their attempt was over or replaced when they were sampled."""
        with self._lock:
            return self._late_turns

    def register(self, rollout_id: str, attempt_id: str, key: RolloutKey, attempt: int) -> None:
        """Accepts calls of this attempt from now on; ``attempt`` is 0-based."""
        with self._lock:
            self._attempts[rollout_id, attempt_id] = _Attempt(key, attempt)

    def key_of(self, rollout_id: str, attempt_id: str) -> RolloutKey | None:
        """Which rollout is running under these ids; None when none is, or not any more."""
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            return None if attempt is None else attempt.key

    def turns_so_far(self, rollout_id: str, attempt_id: str) -> tuple[Turn, ...]:
        """The attempt's turns, shorter prompts first, and those of one prompt in the order in which it was asked.

        A reply that the agent sends back is among them, whatever else is in flight.
        """
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            turns = [] if attempt is None else sorted(attempt.turns, key=lambda entry: (len(entry[0]), *entry[1:3]))
            return tuple(entry[-1] for entry in turns)

    def begin(self, rollout_id: str, attempt_id: str, prompt_tokens: Sequence[int]) -> Call | None:
        """Counts a call in and gives its seed; None when no such attempt is under way.

        ``record`` or ``abandon`` must follow, and counts it out.
        """
        prompt = tuple(prompt_tokens)
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            if attempt is None:
                return None
            repeat = attempt.asked[prompt]
            attempt.asked[prompt] += 1
            attempt.overlapped = attempt.overlapped or attempt.in_flight > 0
            attempt.in_flight += 1
        seed = call_seed(self._run_seed, attempt.key, attempt.number, prompt, repeat)
        return Call(rollout_id, attempt_id, prompt, repeat, seed)

    def record(self, call: Call, turns: Sequence[Turn]) -> bool:
        """Keeps what was sampled for ``call``; False, and counted as late, when its attempt is over."""
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is None:
                self._late_turns += len(turns)
                return False
            attempt.in_flight -= 1
            attempt.turns += [(call.prompt_tokens, call.repeat, sample, turn) for sample, turn in enumerate(turns)]
            return True

    def abandon(self, call: Call) -> None:
        """Counts out a call of which nothing is recorded, so that those after it do not seem to overlap with it."""
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is not None:
                attempt.in_flight -= 1

    def collect(self, rollout_id: str, attempt_id: str) -> tuple[Turn, ...]:
        """The attempt's turns, which are then forgotten: later calls and turns of it are refused."""
        with self._lock:
            attempt = self._attempts.pop((rollout_id, attempt_id), None)
        return () if attempt is None else attempt.in_order()


def call_seed(run_seed: int, key: RolloutKey, attempt: int, prompt_tokens: Sequence[int], repeat: int) -> int:
    """The sampling seed of one call: 31 bits of a BLAKE2b hash, because sampling services take signed 32-bit seeds."""
    digest = hashlib.blake2b(f"{run_seed}/{key}/{attempt}/{repeat}/".encode(), digest_size=4)
    digest.update(struct.pack(f"<{len(prompt_tokens)}q", *prompt_tokens))
    return int.from_bytes(digest.digest(), "big") & 0x7FFF_FFFF
