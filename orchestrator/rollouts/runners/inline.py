"""Runs agents inside this process, one attempt at a time each, many at once, and says how every attempt ended."""

import asyncio
import copy
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog

from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import AttemptResult, Report, judge
from orchestrator.rollouts.capture import ROLLOUT_KEY_HEADER, Capture
from orchestrator.rollouts.compat import (
    AttemptedRollout,
    AttemptStatus,
    InMemoryLightningStore,
    LitAgent,
    NamedResources,
    Span,
    emit_reward,
    install_tracer,
)
from orchestrator.rollouts.outcomes import Outcome, RolloutKey
from orchestrator.rollouts.rewards import Rewards
from orchestrator.rollouts.runners.play import cancelled, play_async, play_in_thread
from orchestrator.rollouts.runners.remembered import Remembered
from orchestrator.rollouts.threads import DaemonThreads, LeftBehind, in_daemon_thread

log = structlog.get_logger(__name__)

WORKER = "inline"
BOOKED_AT_ONCE = 8
"""A rollout's beginning or end costs about a millisecond in the store. Hundreds of them in one turn of the event loop
would hold up everything else on it."""
BLOCKED_SECONDS = 1.0
"""A loop that takes longer to answer is blocked by an agent."""
CANCEL_SECONDS = 5.0
"""Given to cancelled agents for their own clean-up when the runner is closed."""
ATTEMPT_STATUS: dict[Outcome, AttemptStatus] = {Outcome.SUCCEEDED: "succeeded", Outcome.TIMED_OUT: "timeout"}
"""What the store is told; every other outcome is ``failed`` there."""


class InlineRunner:
    """Runs attempts in this process.

    Asynchronous agents are tasks on one event loop in a daemon thread of their own, so an agent that blocks can hold
    up the agents beside it but never the run's deadlines and signals; those after it get a fresh loop. Each synchronous
    agent has a daemon thread. One that does not return in ``timeout_seconds`` is cancelled (asynchronous) or abandoned
    (synchronous): from then on its calls are refused, its rewards ignored, and it cannot keep the process alive.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        *,
        store: InMemoryLightningStore,
        capture: Capture,
        timeout_seconds: float,
        spans: SpanTurns | None = None,
    ) -> None:
        """``spans``: where the turns that are trained on are read instead of in ``capture``."""
        self._agent = agent
        self._store = store
        self._capture = capture
        self._timeout_seconds = timeout_seconds
        self._spans = spans
        self._tracer = install_tracer()
        self._remembered = Remembered(store)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: Future[None] | None = None
        self._left_behind = LeftBehind()
        self._booking = asyncio.Semaphore(BOOKED_AT_ONCE)

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt; ``attempt`` is 0-based and ``task`` is copied, so agents may change theirs.

        Registering and claiming in the store are one step, so that no other worker of the store takes the rollout.

        Raises:
            LookupError: the store holds no resources under ``resources_id``.
            StateFailedError: too many threads of earlier attempts still run.
        """
        await self._left_behind.check()
        async with self._booking:
            await asyncio.sleep(0)
            resources = await self._resources(key, resources_id)
            rollout = await self._store.start_rollout(
                input=copy.deepcopy(task),
                mode="train" if key.mode == "train" else "val",
                resources_id=resources_id,
                metadata={
                    "rollout_key": str(key),
                    "attempt": attempt,
                    ROLLOUT_KEY_HEADER: self._capture.rollout_key(key, attempt),
                },
                worker_id=WORKER,
            )
        rewards, threads = Rewards(), list[Future[Any]]()
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        self._capture.register(*ids, key, attempt)
        future = asyncio.wrap_future(self._start(rollout, resources, rewards, threads))
        try:
            report = await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            report = None
        finally:
            rewards.close()
            turns = self._capture.collect(*ids)
            self._left_behind.add(threads)
            self._remembered.add(rollout.rollout_id, resources_id)
        if report is None:
            await self._replace_blocked_loop()
        result = judge(report, turns, self._timeout_seconds)
        if self._spans is not None:
            result = await self._spans.adapt(*ids, result)
        async with self._booking:
            await asyncio.sleep(0)
            await self._show(rollout, result)
            await self._remembered.shrink()
        return result

    def close(self) -> None:
        """Cancels asynchronous agents that still run and ends their loop, without waiting for it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop)

    async def _resources(self, key: RolloutKey, resources_id: str) -> NamedResources:
        update = await self._store.get_resources_by_id(resources_id)
        if update is None:
            raise LookupError(
                f"rollout {key}: the store holds no resources {resources_id!r}; publish before rolling out"
            )
        return update.resources

    def _start(
        self, rollout: AttemptedRollout, resources: NamedResources, rewards: Rewards, threads: "list[Future[Any]]"
    ) -> "Future[Report]":
        if self._agent.is_async():
            playing = play_async(self._agent, rollout, resources, rewards=rewards, tracer=self._tracer, threads=threads)
            return asyncio.run_coroutine_threadsafe(playing, self._agent_loop())
        return play_in_thread(self._agent, rollout, resources, rewards=rewards, tracer=self._tracer, threads=threads)

    def _agent_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(DaemonThreads())
            self._loop_thread = in_daemon_thread(partial(_run_loop, self._loop), name="agents")
        return self._loop

    async def _replace_blocked_loop(self) -> None:
        """Leaves a loop that an agent blocks to it, so that only the agents already there are lost."""
        loop = self._loop
        if loop is None:
            return
        answer = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop))
        try:
            await asyncio.wait_for(answer, BLOCKED_SECONDS)
        except TimeoutError:
            if self._loop is loop:
                self._loop = None
                self._left_behind.add([self._loop_thread] if self._loop_thread else [])
                log.warning(
                    "an asynchronous agent blocks its event loop; make its calls await, or the agent synchronous"
                )

    async def _show(self, rollout: AttemptedRollout, result: AttemptResult) -> None:
        """Shows the attempt's end in the store, as Agent-lightning's own runner would."""
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        if result.reward is not None:
            sequence_id = await self._store.get_next_span_sequence_id(rollout_id, attempt_id)
            reward = emit_reward(result.reward, propagate=False)
            await self._store.add_span(
                Span.from_core_fields(reward, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence_id)
            )
        await self._store.update_attempt(rollout_id, attempt_id, status=ATTEMPT_STATUS.get(result.outcome, "failed"))


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            break
        except (SystemExit, KeyboardInterrupt):
            # Of a task that an agent started: it has its exception, and the loop, though asyncio leaves it, is sound.
            continue
    loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    await cancelled(asyncio.all_tasks() - {asyncio.current_task()}, wait_seconds=CANCEL_SECONDS)
    loop.stop()
