"""Where sampled turns are kept until their attempt is over, and where each call's sampling seed comes from."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, cast

import structlog

from orchestrator.disk import Disk
from orchestrator.rollouts.outcomes import RolloutKey, StoredRollout, Turn
from orchestrator.rollouts.replay import Attempt, Prompt
from orchestrator.rollouts.turns import AnsweredCall, TurnLog

log = structlog.get_logger(__name__)

ROLLOUT_KEY_HEADER = "x-rollout-key"
"""The name under which agents find the ``rollout_key``, e.g. in the metadata of the rollout that they get."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model call of an attempt that is under way."""

    rollout_id: str
    attempt_id: str
    prompt_tokens: Prompt
    asked: str
    """Its sampling parameters, as text."""
    repeat: int
    """Tells calls of one attempt with the same prompt apart: the least number that none of the others has."""
    number: int
    """Which of the attempt's calls it is, however often the same is asked."""
    seed: int
    """31 bits; the same whenever the same run, rollout and attempt ask this prompt for the same time."""
    kept: tuple[Turn, ...] | None = None
    """What was sampled for it before the attempt was cut short, and answers it now; None: it is to be sampled."""


class Capture:
    """The turns of the attempts under way, keyed by Agent-lightning's rollout and attempt id.

    Safe to share between threads: the gateway records from its own, the runners collect from theirs. Nothing in it
    depends on which of several calls arrives or finishes first: seeds are hashes of what was asked, and the turns of an
    attempt that had several in flight at once are ordered by their prompts. Compared as token sequences a prompt comes
    right before the ones that extend it, so each conversation's turns stand together and in the order they happened.

    What is kept is what the agent got. A call whose reply is lost, because its client stopped waiting, leaves no turn;
    asked again it has the same seed, so the reply that the agent does get is the one it would have got.
    """

    def __init__(self, *, run_seed: int, run_id: str = "") -> None:
        self._run_seed = run_seed
        self._run_id = run_id
        self._attempts: dict[tuple[str, str], Attempt] = {}
        self._kept: dict[tuple[RolloutKey, int], list[AnsweredCall]] = {}
        """What attempts begin with: calls that they have made before."""
        self._mismatched: set[tuple[RolloutKey, int]] = set()
        """Attempts that dropped some of these."""
        self._log: TurnLog | None = None
        self._late_turns = 0
        self._warned = False
        self._lock = Lock()

    @property
    def late_turns(self) -> int:
        """How many turns were dropped: sampled when their attempt was over, or whose reply their agent never got."""
        with self._lock:
            return self._late_turns

    @asynccontextmanager
    async def storing(self, path: Path, *, disk: Disk) -> AsyncIterator[None]:
        """While the context is entered, every turn is stored in ``path`` before ``record``'s future is done.

        Attempts registered meanwhile begin with what the file holds of them; at the end all of them are over. When
        a turn cannot be stored the block is cancelled at once: no agent that was refused for it fails a rollout.

        Raises:
            JournalWriteError: the file could not be opened or written.
        """
        loop = asyncio.get_running_loop()
        block = cast("asyncio.Task[Any]", asyncio.current_task())  # None only outside of a coroutine
        cancelled_before = block.cancelling()
        inside, cancelled = True, False

        def cancel_block() -> None:
            nonlocal cancelled
            if inside:
                cancelled = block.cancel()

        def failed() -> None:
            loop.call_soon_threadsafe(cancel_block)

        turns = await asyncio.to_thread(TurnLog, path, disk=disk, on_failure=failed)
        with self._lock:
            self._log, self._warned = turns, False
            # Where an attempt asked the same twice, because it had dropped the first, the later one counts.
            latest = {
                (call.key, call.attempt, call.prompt_tokens, call.repeat, call.asked): call for call in turns.found
            }
            for call in latest.values():
                self._kept.setdefault((call.key, call.attempt), []).append(call)
        try:
            yield
        except asyncio.CancelledError:
            # Only ours becomes an error; whoever else cancelled the task is obeyed.
            if not cancelled or block.uncancel() > cancelled_before:
                raise
        finally:
            inside = False
            with self._lock:
                self._log = None
                self._attempts.clear()
                self._kept.clear()
                self._mismatched.clear()
            turns.close()
        if turns.failure is not None:
            raise turns.failure

    def count_mismatches(self, rollouts: Sequence[StoredRollout]) -> int:
        """How many of ``rollouts`` had kept turns that they did not ask for again when they were run again.

        A function of what is stored, so it is the same however often the process was killed since.
        """
        with self._lock:
            kept, mismatched = dict(self._kept), set(self._mismatched)
        return sum(
            (rollout.key, rollout.attempt) in mismatched
            or any(
                turn not in rollout.turns
                for call in kept.get((rollout.key, rollout.attempt), ())
                for turn in call.turns
            )
            for rollout in rollouts
        )

    def register(self, rollout_id: str, attempt_id: str, key: RolloutKey, attempt: int) -> None:
        """Accepts calls of this attempt from now on; ``attempt`` is 0-based.

        What is kept of it answers them for as long as they ask the same, see ``replay``.
        """
        with self._lock:
            found = self._kept.get((key, attempt), [])
            self._attempts[rollout_id, attempt_id] = Attempt.beginning_with(found, key, attempt)

    def rollout_key(self, key: RolloutKey, attempt: int) -> str:
        """The value of ``x-rollout-key``: of this attempt alone among those of all runs, and the same when it is rerun.

        A tool that is given it with a side effect can refuse to do the same thing twice.
        """
        return f"{self._run_id}/{key}/{attempt}"

    def rollout_key_of(self, rollout_id: str, attempt_id: str) -> str | None:
        """The ``x-rollout-key`` of the attempt under way under these ids; None when none is."""
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            return None if attempt is None else self.rollout_key(attempt.key, attempt.number)

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
            return () if attempt is None else attempt.by_length()

    def begin(
        self,
        rollout_id: str,
        attempt_id: str,
        prompt_tokens: Sequence[int],
        *,
        asked: str = "{}",
        policy_version: int = 0,
        again: bool = False,
    ) -> Call | None:
        """Counts a call in and gives its seed, and its kept turns if any; None when no such attempt is under way.

        ``asked`` is what ``turns.asked_text`` makes of the sampling parameters. ``record`` or ``abandon`` must follow,
        and counts it out. ``again``: the client says that it makes this call for want of a reply to an earlier one.
        Where no call of the prompt is known to be lost, the newest one was.
        """
        prompt = tuple(prompt_tokens)
        with self._lock:
            attempt = self._attempts.get((rollout_id, attempt_id))
            if attempt is None:
                return None
            if again and attempt.lost[prompt]:
                attempt.lost[prompt] -= 1
            elif again and (newest := attempt.newest(prompt)) is not None:
                self._late_turns += attempt.drop(newest, prompt)
            attempt.overlapped = attempt.overlapped or bool(attempt.in_flight)
            kept = attempt.take_kept(prompt, asked, policy_version)
            if kept is None and attempt.kept and not attempt.overlapped:
                self._drop_kept(attempt)
            number, repeat = attempt.begin(prompt, kept)
        seed = call_seed(self._run_seed, attempt.key, attempt.number, prompt, repeat)
        return Call(rollout_id, attempt_id, prompt, asked, repeat, number, seed, kept.turns if kept else None)

    def record(self, call: Call, turns: Sequence[Turn]) -> "Future[None] | None":
        """Keeps what was sampled for ``call``; None, and counted as late, when its attempt is over or it is lost.

        The reply may leave once the future is done: from then on a kill does not cost the turn.
        """
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is None or call.number not in attempt.in_flight:
                self._late_turns += len(turns)
                return None
            attempt.in_flight.remove(call.number)
            answered = AnsweredCall(
                attempt.key,
                attempt.number,
                call.prompt_tokens,
                call.repeat,
                call.asked,
                attempt.overlapped,
                tuple(turns),
            )
            attempt.answered[call.number] = answered
            if self._log is not None and call.kept is None:
                return self._log.append(answered)
        stored: Future[None] = Future()
        stored.set_result(None)
        return stored

    def abandon(self, call: Call) -> None:
        """Forgets a call whose reply does not reach its agent, recorded or not.

        To be called when sampling fails, and when the client is gone before the reply is sent. Those after it then do
        not seem to overlap with it, and the same call made again gets the same seed; a turn that was stored for it is
        outdone by the one that is stored then.
        """
        with self._lock:
            attempt = self._attempts.get((call.rollout_id, call.attempt_id))
            if attempt is not None and (call.number in attempt.in_flight or call.number in attempt.answered):
                self._late_turns += attempt.drop(call.number, call.prompt_tokens)
                attempt.lost[call.prompt_tokens] += 1

    def collect(self, rollout_id: str, attempt_id: str) -> tuple[Turn, ...]:
        """The attempt's turns, which are then forgotten: later calls and turns of it are refused."""
        with self._lock:
            attempt = self._attempts.pop((rollout_id, attempt_id), None)
        return () if attempt is None else attempt.in_order()

    def set_aside(self, rollout_id: str, attempt_id: str) -> None:
        """Ends an attempt whose worker is gone: when it is registered anew, its turns answer the calls.

        Later calls and turns under these ids are refused. Does nothing when no such attempt is under way.
        """
        with self._lock:
            attempt = self._attempts.pop((rollout_id, attempt_id), None)
            if attempt is not None:
                kept = [call for calls in attempt.kept.values() for call in calls]
                self._kept[attempt.key, attempt.number] = [*attempt.answered.values(), *kept]

    def _drop_kept(self, attempt: Attempt) -> None:
        self._mismatched.add((attempt.key, attempt.number))
        write = log.debug if self._warned else log.warning
        self._warned = True
        write(
            "a rollout that is run again asks the model otherwise than before: the rest of its kept turns is dropped",
            rollout=str(attempt.key),
            attempt=attempt.number,
            replayed_calls=len(attempt.answered),
            dropped_calls=sum(map(len, attempt.kept.values())),
        )
        attempt.kept.clear()


def call_seed(run_seed: int, key: RolloutKey, attempt: int, prompt_tokens: Sequence[int], repeat: int) -> int:
    """The sampling seed of one call: 31 bits of a BLAKE2b hash, because sampling services take signed 32-bit seeds."""
    digest = hashlib.blake2b(f"{run_seed}/{key}/{attempt}/{repeat}/".encode(), digest_size=4)
    digest.update(struct.pack(f"<{len(prompt_tokens)}q", *prompt_tokens))
    return int.from_bytes(digest.digest(), "big") & 0x7FFF_FFFF
