"""Runs agents inside this process, one attempt at a time each, many at once, and says how every attempt ended."""

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog

from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import AttemptResult, Ended, classify, raised, returned
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.compat import (
    AttemptedRollout,
    AttemptStatus,
    InMemoryLightningStore,
    LitAgent,
    NamedResources,
    Span,
    emit_reward,
    forget_rollout,
    install_tracer,
)
from orchestrator.rollouts.outcomes import Outcome, RolloutKey
from orchestrator.rollouts.rewards import Rewards
from orchestrator.rollouts.threads import DaemonThreads, LeftBehind, claim_threads, in_daemon_thread

log = structlog.get_logger(__name__)

WORKER = "inline"
REMEMBERED_ROLLOUTS = 1000
"""Finished rollouts that the store still shows; about 8 kB each."""
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
        self._reported: deque[str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: Future[None] | None = None
        self._left_behind = LeftBehind()

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt; ``attempt`` is 0-based and ``task`` is copied, so agents may change theirs.

        Registering and claiming in the store are one step, so that no other worker of the store takes the rollout.

        Raises:
            LookupError: the store holds no resources under ``resources_id``.
            StateFailedError: too many threads of earlier attempts still run.
        """
        await self._left_behind.check()
        resources = await self._store.get_resources_by_id(resources_id)
        if resources is None:
            raise LookupError(
                f"rollout {key}: the store holds no resources {resources_id!r}; publish before rolling out"
            )
        rollout = await self._store.start_rollout(
            input=copy.deepcopy(task),
            mode="train" if key.mode == "train" else "val",
            resources_id=resources_id,
            metadata={"rollout_key": str(key), "attempt": attempt},
            worker_id=WORKER,
        )
        rewards, threads = Rewards(), list[Future[Any]]()
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        self._capture.register(*ids, key, attempt)
        future = asyncio.wrap_future(self._start(rollout, resources.resources, rewards, threads))
        try:
            ended = await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            ended = None
        finally:
            rewards.close()
            turns = self._capture.collect(*ids)
            self._left_behind.add(threads)
        if ended is None:
            await self._replace_blocked_loop()
        result = classify(ended, rewards, turns, self._timeout_seconds)
        if self._spans is not None:
            result = await self._spans.adapt(*ids, result)
        await self._report(rollout, result)
        return result

    def close(self) -> None:
        """Cancels asynchronous agents that still run and ends their loop, without waiting for it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop)

    def _start(
        self, rollout: AttemptedRollout, resources: NamedResources, rewards: Rewards, threads: "list[Future[Any]]"
    ) -> "Future[Ended]":
        train = rollout.mode == "train"
        agent = self._agent
        if agent.is_async():
            run_async = agent.training_rollout_async if train else agent.validation_rollout_async

            async def run_task() -> Ended:
                self._tracer.send_rewards_to(rewards.add)
                claim_threads(threads)
                return await _ended_async(run_async(rollout.input, resources, rollout))

            return asyncio.run_coroutine_threadsafe(run_task(), self._agent_loop())
        run_sync = agent.training_rollout if train else agent.validation_rollout

        def run_thread() -> Ended:
            self._tracer.send_rewards_to(rewards.add)
            return _ended_sync(lambda: run_sync(rollout.input, resources, rollout))

        future = in_daemon_thread(run_thread, name=str(rollout.rollout_id))
        threads.append(future)
        return future

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

    async def _report(self, rollout: AttemptedRollout, result: AttemptResult) -> None:
        """Shows the attempt's end in the store, as Agent-lightning's own runner would; the oldest shown are dropped."""
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        if result.reward is not None:
            sequence_id = await self._store.get_next_span_sequence_id(rollout_id, attempt_id)
            reward = emit_reward(result.reward, propagate=False)
            await self._store.add_span(
                Span.from_core_fields(reward, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence_id)
            )
        await self._store.update_attempt(rollout_id, attempt_id, status=ATTEMPT_STATUS.get(result.outcome, "failed"))
        self._reported.append(rollout_id)
        if len(self._reported) > REMEMBERED_ROLLOUTS:
            await forget_rollout(self._store, self._reported.popleft())


async def _ended_async(agent: Coroutine[Any, Any, Any]) -> Ended:
    try:
        return returned(await agent)
    except BaseException as error:  # a SystemExit of one agent must not end the loop of all
        return raised(error)


def _ended_sync(agent: Callable[[], Any]) -> Ended:
    try:
        return returned(agent())
    except BaseException as error:  # likewise
        return raised(error)


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
    agents = asyncio.all_tasks() - {asyncio.current_task()}
    for agent in agents:
        agent.cancel()
    if agents:
        await asyncio.wait(agents, timeout=CANCEL_SECONDS)
    loop.stop()
