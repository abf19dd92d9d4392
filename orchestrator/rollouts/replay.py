"""One attempt under way: the calls that it has made, and those from before a kill that answer it now.

What is kept of an attempt that a kill cut short answers the calls of its next run, so sampled tokens are paid once. A
kept call answers one that asks the same: prompt tokens, sampling parameters and policy version are equal. Arrival
decides nothing, for parallel calls come in any order. An attempt whose calls have always been one at a time is an
agent that goes step by step: its first call that asks otherwise, while kept calls remain, means that it went another
way, and those that remain are dropped. Where calls overlapped, a call that is not among the kept ones may just be one
that was in flight at the kill: nothing is dropped then, and what nobody asks for again by the end is the mismatch.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.rollouts.outcomes import RolloutKey, Turn
from orchestrator.rollouts.turns import AnsweredCall

Prompt = tuple[int, ...]


@dataclass(slots=True)
class Attempt:
    """An attempt while calls are made for it; whoever shares it between threads locks it."""

    key: RolloutKey
    number: int
    overlapped: bool
    """Whether two calls were ever in flight at once."""
    kept: dict[Prompt, list[AnsweredCall]]
    """By prompt, those that were not asked for again so far."""
    num_calls: int = 0
    repeats: dict[Prompt, dict[int, int]] = field(default_factory=dict)
    """By prompt and number, the repeat of each call in flight or answered."""
    in_flight: set[int] = field(default_factory=set)
    """The numbers of the calls that wait for their reply."""
    answered: dict[int, AnsweredCall] = field(default_factory=dict)
    """By the call's number."""
    lost: Counter[Prompt] = field(default_factory=Counter)
    """Calls that are known to have got no reply, by prompt, less those that were made again."""

    @classmethod
    def beginning_with(cls, calls: Sequence[AnsweredCall], key: RolloutKey, number: int) -> "Attempt":
        """An attempt that has made ``calls`` before it was cut short."""
        kept: dict[Prompt, list[AnsweredCall]] = {}
        for call in sorted(calls, key=lambda call: call.repeat):
            kept.setdefault(call.prompt_tokens, []).append(call)
        return cls(key, number, any(call.overlapped for call in calls), kept)

    def in_order(self) -> tuple[Turn, ...]:
        """As they happened where they happened one after another, else by their prompts."""
        calls = list(self.answered.values())
        if self.overlapped:
            calls.sort(key=lambda call: (call.prompt_tokens, call.repeat))
        return tuple(turn for call in calls for turn in call.turns)

    def by_length(self) -> tuple[Turn, ...]:
        """Shorter prompts first, and those of one prompt in the order in which it was asked."""
        calls = sorted(
            self.answered.values(), key=lambda call: (len(call.prompt_tokens), call.prompt_tokens, call.repeat)
        )
        return tuple(turn for call in calls for turn in call.turns)

    def take_kept(self, prompt: Prompt, asked: str, policy_version: int) -> AnsweredCall | None:
        """The kept call that asked the same, which then is no longer kept; of several the one of the least repeat."""
        same_prompt = self.kept.get(prompt, [])
        for call in same_prompt:
            if (call.asked, call.policy_version) == (asked, policy_version):
                same_prompt.remove(call)
                if not same_prompt:
                    del self.kept[prompt]
                return call
        return None

    def begin(self, prompt: Prompt, kept: AnsweredCall | None) -> tuple[int, int]:
        """The number and the repeat of a call that begins, which ``kept`` answers; None: it is to be sampled.

        The repeat is the least that no other call with this prompt has, those that are kept included.
        """
        calls = self.repeats.setdefault(prompt, {})
        used = {*calls.values(), *(call.repeat for call in self.kept.get(prompt, ()))}
        free = next(repeat for repeat in range(len(used) + 1) if repeat not in used)
        number, self.num_calls = self.num_calls, self.num_calls + 1
        calls[number] = free if kept is None else kept.repeat
        self.in_flight.add(number)
        return number, calls[number]

    def drop(self, number: int, prompt: Prompt) -> int:
        """Forgets a call, in flight or answered, and what was sampled for it; the number of turns dropped."""
        self.in_flight.discard(number)
        self.repeats[prompt].pop(number, None)
        answered = self.answered.pop(number, None)
        return 0 if answered is None else len(answered.turns)

    def newest(self, prompt: Prompt) -> int | None:
        """The number of the newest call of this prompt, in flight or answered."""
        return max(self.repeats.get(prompt, {}), default=None)
