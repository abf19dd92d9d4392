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
    """How many other replies to exactly this prompt the attempt had or waited for, whose replies were not lost."""
    number: int
    """Which of the attempt's calls it is, however often the same is asked."""
    seed: int
    """31 bits; the same whenever the same run, rollout and attempt ask this prompt for the same time."""


@dataclass(slots=True)
class _Attempt:
    key: RolloutKey
    number: int
    num_calls: int = 0
    in_flight: dict[int, Call] = field(default_factory=dict)
    """By ``Call.number``."""
    overlapped: bool = False
    """Whether two calls were ever in flight at once."""
    turns: dict[int, tuple[Call, tuple[Turn, ...]]] = field(default_factory=dict)
    """What was sampled for each call, by ``Call.number``."""
    lost: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """Calls that are known to have got no reply, by prompt, less those that were made again."""

    def in_order(self) -> tuple[Turn, ...]:
        """As they happened where they happened one after another, else by their prompts."""
        taken = list(self.turns.values())
        if self.overlapped:
            taken.sort(key=lambda entry: (entry[0].prompt_tokens, entry[0].repeat))
        return tuple(turn for _, turns in taken for turn in turns)

    def free_repeat(self, prompt: tuple[int, ...]) -> int:
        """The least number that no call of this prompt has."""
        calls = [*self.in_flight.values(), *(call for call, _ in self.turns.values())]
        taken = {call.repeat for call in calls if call.prompt_tokens == prompt}
        return next(number for number in range(len(taken) + 1) if number not in taken)

    def drop(self, number: int) -> int:
        """Forgets a call, in flight or answered, and what was sampled for it; the number of turns dropped."""
        self.in_flight.pop(number, None)
        return len(self.turns.pop(number, (None, ()))[1])

    def latest(self, prompt: tuple[int, ...]) -> int | None:
        """The newest call of this prompt, in flight or answered."""
        calls = [*self.in_flight.values(), *(call for call, _ in self.turns.values())]
        return max((call.number for call in calls if call.prompt_tokens == prompt), default=None)


class Capture:
    """The turns of the attempts under way, keyed by Agent-lightning's rollout and attempt id.

    Safe to share between threads: the gateway records from its own, the runners collect from theirs. Nothing in it
    depends on which of several calls arrives or finishes first: seeds are hashes of what was asked, and the turns of an
    attempt that had several in flight at once are ordered by their prompts. Compared as token sequences a prompt comes
    right before the ones that extend it, so each conversation's turns stand together and in the order they happened.

    What is kept is what the agent got. A call whose reply is lost, because its client stopped waiting, leaves no turn;
    asked again it has the same seed, so the reply that the agent does get is the one it would have got.
    """

    def __init__(self, *, run_seed: int) -> None:
        self._run_seed = run_seed
        self._attempts: dict[tuple[str, str], _Attempt] = {}
        self._late_turns = 0
        self._lock = Lock()

    @property
    def late_turns(self) -> int:
        """How many turns were dropped: sampled when their attempt was over, or whose reply their agent never got."""
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
            taken = [] if attempt is None else list(attempt.turns.values())
        taken.sort(key=lambda entry: (len(entry[0].prompt_tokens), entry[0].prompt_tokens, entry[0].repeat))
        return tuple(turn for _, turns in taken for turn in turns)

    def begin(
        self, rollout_id: str, attempt_id: str, prompt_tokens: Sequence[int], *, again: bool = False
    ) -> Call | None:
        """Counts a call in and gives its seed; None when no such attempt is under way.

        ``record`` or ``abandon`` must follow, and counts it out. ``again``: the client says that it makes this call
        for want of a reply to an earlier one. Where no call of the prompt is known to be lost, the newest one was.
        """
        prompt = tuple(prompt_tokens)
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            if attempt is None:
                return None
            if again and attempt.lost[prompt]:
                attempt.lost[prompt] -= 1
            elif again and (newest := attempt.latest(prompt)) is not None:
                self._late_turns += attempt.drop(newest)
            repeat = attempt.free_repeat(prompt)
            seed = call_seed(self._run_seed, attempt.key, attempt.number, prompt, repeat)
            call = Call(rollout_id, attempt_id, prompt, repeat, attempt.num_calls, seed)
            attempt.num_calls += 1
            attempt.overlapped = attempt.overlapped or bool(attempt.in_flight)
            attempt.in_flight[call.number] = call
            return call

    def record(self, call: Call, turns: Sequence[Turn]) -> bool:
        """Keeps what was sampled for ``call``; False, and counted as late, when its attempt is over or it is lost."""
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is None or attempt.in_flight.pop(call.number, None) is None:
                self._late_turns += len(turns)
                return False
            attempt.turns[call.number] = call, tuple(turns)
            return True

    def abandon(self, call: Call) -> None:
        """Forgets a call whose reply does not reach its agent, recorded or not.

        To be called when sampling fails, and when the client is gone before the reply is sent; those after it then do
        not seem to overlap with it.
        """
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is not None and (call.number in attempt.in_flight or call.number in attempt.turns):
                self._late_turns += attempt.drop(call.number)
                attempt.lost[call.prompt_tokens] += 1

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
