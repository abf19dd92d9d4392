"""Runs the rollouts of one state and stores each as it finishes, so that a resume runs only the missing ones."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import structlog

from orchestrator.disk import DISK, Disk
from orchestrator.errors import StateFailedError
from orchestrator.journal.durable import LineFile, write_durably
from orchestrator.names import counted
from orchestrator.rollouts.attempts import AttemptResult, Runner
from orchestrator.rollouts.outcomes import (
    Mode,
    Outcome,
    RolloutKey,
    StoredRollout,
    check_lines,
    kind_of_error,
    task_sha256,
)
from orchestrator.rollouts.quotes import prompts_of, without_prompts

log = structlog.get_logger(__name__)

MAX_KINDS = 8
"""Of failures that are shown on the console, one each, in one state."""


@dataclass(frozen=True, slots=True)
class CollectProgress:
    """How far the rollouts of one state are."""

    batch: int
    mode: Mode
    num_finished: int
    num_total: int
    outcomes: dict[str, int]
    """Finished rollouts by outcome, zeros included."""
    mean_reward: float | None
    """Over the succeeded ones; None while there is none."""
    sampled_tokens: int
    """Of all stored attempts, those that were retried included."""


class Collector:
    """Runs groups of rollouts, at most ``concurrency`` at once.

    An attempt's line is on disk before the attempt counts as done, and a rollout whose last attempt is stored is never
    run again. ``max_retries`` more attempts follow one that did not succeed. What becomes of the rollout then is
    decided where groups are formed, except under ``on_failure="stop"``: there the first such rollout ends the
    collection, and a later collection tries it again.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        concurrency: int,
        max_retries: int,
        on_failure: Literal["drop_member", "drop_group", "stop"],
        decode: Callable[[list[int]], str],
        disk: Disk = DISK,
    ) -> None:
        """``decode`` gives the text of tokens, by which a failure that quotes a prompt is known."""
        self._runner = runner
        self._decode = decode
        self._disk = disk
        self._concurrency = concurrency
        self._max_retries = max_retries
        self._stop_on_failure = on_failure == "stop"

    async def collect(
        self,
        *,
        batch: int,
        mode: Mode,
        tasks: Sequence[Any],
        group_size: int,
        resources_id: str,
        path: Path,
        stop: asyncio.Event,
        on_progress: Callable[[CollectProgress], None],
    ) -> list[StoredRollout]:
        """Every stored attempt, in the order of group, member and attempt; ``tasks[group]`` is each group's task.

        When all rollouts are finished the file is rewritten in that order, so its bytes do not depend on which finished
        first. Once ``stop`` is set nothing new begins: the rollouts under way finish, and what is stored is returned
        without sealing the file. Cancelling abandons what is under way; whole lines only are stored either way.

        Raises:
            SideFileDamagedError: ``path`` holds a line that is no rollout of this state or of another task than the
                one in ``tasks``, or one attempt twice.
            StateFailedError: ``on_failure`` is ``stop`` and a rollout did not succeed.
            JournalWriteError: the file cannot be written.
        """
        keys = [RolloutKey(batch, mode, group, member) for group in range(len(tasks)) for member in range(group_size)]
        task_sha256s = [task_sha256(task) for task in tasks]
        with LineFile(path, disk=self._disk) as lines, ThreadPoolExecutor(1, "rollouts") as writer:
            stored = check_lines(path, lines.lines, set(keys), task_sha256s)
            state = _Collection(batch, mode, len(keys), stored, lines, writer, on_progress)
            on_progress(state.progress())
            pending = deque(key for key in keys if not state.finished(key))

            async def work() -> None:
                while pending and not stop.is_set():
                    key = pending.popleft()
                    await self._finish(key, tasks[key.group], resources_id, state, stop)

            await _all_or_none([work() for _ in range(min(self._concurrency, len(pending)))])
        state.log_failures()
        rollouts = state.in_order()
        if state.num_finished == len(keys):
            await asyncio.to_thread(_seal, path, rollouts, self._disk)
        return rollouts

    async def _finish(
        self, key: RolloutKey, task: Any, resources_id: str, state: "_Collection", stop: asyncio.Event
    ) -> None:
        """Attempts one rollout until it succeeds, its retries are used up, or ``stop`` is set."""
        attempt = state.next_attempt(key)
        final_attempt = max(self._max_retries, attempt)
        while not state.finished(key) and not stop.is_set():
            began = time.monotonic()
            result = await self._runner.run(key, attempt=attempt, task=task, resources_id=resources_id)
            succeeded = result.outcome is Outcome.SUCCEEDED
            given_up = not succeeded and attempt >= final_attempt
            error, traceback = await self._told(task, result)
            rollout = StoredRollout(
                key=key,
                attempt=attempt,
                last=succeeded or (given_up and not self._stop_on_failure),
                outcome=result.outcome,
                reward=result.reward,
                turns=result.turns,
                error=error,
                task_sha256=task_sha256(task),
                rewards=result.rewards,
                traceback=traceback,
            )
            await state.store(rollout)
            state.log_attempt(rollout, seconds=round(time.monotonic() - began, 3))
            if given_up and self._stop_on_failure:
                raise StateFailedError(
                    f"rollout {key}, attempt {attempt}: {kind_of_error(rollout)}. on_failure=stop ends the run here; "
                    f"{state.path} has the whole error and every attempt. Mend the agent and run the same command "
                    "again, or set on_failure=drop_member."
                )
            attempt += 1

    async def _told(self, task: Any, result: AttemptResult) -> tuple[str | None, str | None]:
        """The attempt's error and traceback as they are stored: prompts redacted."""
        if result.error is None or result.outcome is not Outcome.FAILED:
            return result.error, result.traceback

        def redact(error: str) -> tuple[str, str | None]:
            prompts = prompts_of(task, result.turns, self._decode)
            traceback = result.traceback
            return without_prompts(error, prompts), None if traceback is None else without_prompts(traceback, prompts)

        return await asyncio.to_thread(redact, result.error)  # prompts may be long, and the loop serves other agents


class _Collection:
    """What is stored of one state's rollouts, kept in step with the file."""

    def __init__(
        self,
        batch: int,
        mode: Mode,
        num_total: int,
        stored: Sequence[StoredRollout],
        lines: LineFile,
        writer: ThreadPoolExecutor,
        on_progress: Callable[[CollectProgress], None],
    ) -> None:
        self.path = lines.path
        self._batch, self._mode, self._num_total = batch, mode, num_total
        self._lines, self._writer, self._on_progress = lines, writer, on_progress
        self._waiting: deque[str] = deque()
        self._failed: BaseException | None = None
        self._stored: list[StoredRollout] = []
        self._finished: set[RolloutKey] = set()
        self._next_attempt: Counter[RolloutKey] = Counter()
        self._outcomes = {outcome.value: 0 for outcome in Outcome}
        self._reward_sum = 0.0
        self._sampled_tokens = 0
        self._warned: set[str] = set()
        for rollout in stored:
            self._count(rollout)

    @property
    def num_finished(self) -> int:
        return len(self._finished)

    def finished(self, key: RolloutKey) -> bool:
        return key in self._finished

    def next_attempt(self, key: RolloutKey) -> int:
        return self._next_attempt[key]

    def in_order(self) -> list[StoredRollout]:
        return sorted(self._stored, key=lambda rollout: (rollout.key, rollout.attempt))

    async def store(self, rollout: StoredRollout) -> None:
        """Returns once the line is durable. One writer thread: appends keep their order, the event loop its pace."""
        self._waiting.append(rollout.to_json())
        await asyncio.get_running_loop().run_in_executor(self._writer, self._append_waiting)
        self._count(rollout)
        self._on_progress(self.progress())

    def _append_waiting(self) -> None:
        """All that waits, with one sync: rollouts that end together are stored together. In the writer thread."""
        if self._failed is not None:  # the lines of who asks now were among those that could not be stored, or follow
            raise self._failed
        lines = []
        while self._waiting:
            lines.append(self._waiting.popleft())
        try:
            if lines:
                self._lines.append(*lines)
        except BaseException as error:
            self._failed = error
            raise

    def log_attempt(self, rollout: StoredRollout, *, seconds: float) -> None:
        """At debug, but the first failure of each of ``MAX_KINDS`` kinds as a warning, which shows it."""
        facts = {"rollout": str(rollout.key), "attempt": rollout.attempt, "seconds": seconds}
        if rollout.outcome is Outcome.SUCCEEDED:
            log.debug("rollout finished", outcome=rollout.outcome.value, **facts)
            return
        kind = kind_of_error(rollout)
        write = log.debug if kind in self._warned or len(self._warned) >= MAX_KINDS else log.warning
        self._warned.add(kind)
        write("rollout did not succeed", error=kind, last=rollout.last, file=str(self.path), **facts)

    def log_failures(self) -> None:
        """One warning with the counts, where a finished rollout did not succeed."""
        num_failed = self.num_finished - self._outcomes[Outcome.SUCCEEDED]
        if num_failed:
            counts = {outcome: count for outcome, count in self._outcomes.items() if count}
            log.warning(
                f"{num_failed} of {counted(self.num_finished, 'rollout')} did not succeed",
                file=str(self.path),
                **counts,
            )

    def progress(self) -> CollectProgress:
        num_succeeded = self._outcomes[Outcome.SUCCEEDED]
        return CollectProgress(
            batch=self._batch,
            mode=self._mode,
            num_finished=self.num_finished,
            num_total=self._num_total,
            outcomes=dict(self._outcomes),
            mean_reward=self._reward_sum / num_succeeded if num_succeeded else None,
            sampled_tokens=self._sampled_tokens,
        )

    def _count(self, rollout: StoredRollout) -> None:
        self._stored.append(rollout)
        self._next_attempt[rollout.key] = max(self._next_attempt[rollout.key], rollout.attempt + 1)
        self._sampled_tokens += rollout.sampled_tokens
        if rollout.last:
            self._finished.add(rollout.key)
            self._outcomes[rollout.outcome] += 1
            if rollout.outcome is Outcome.SUCCEEDED and rollout.reward is not None:
                self._reward_sum += rollout.reward


def _seal(path: Path, rollouts: Sequence[StoredRollout], disk: Disk) -> None:
    """Rewrites the finished file in its one order; does nothing when it already is."""
    data = "".join(f"{rollout.to_json()}\n" for rollout in rollouts).encode()
    if path.read_bytes() != data:
        write_durably(path, data, disk=disk)


async def _all_or_none(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Awaits all; when one raises, or the caller is cancelled, the others are cancelled and waited for first."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
