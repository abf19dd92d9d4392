"""Runs agents inside this process, one attempt at a time each, many at once, and says how every attempt ended."""

import asyncio
import contextvars
import copy
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import structlog

from orchestrator.rollouts.attempts import AttemptResult, Ended, Rewards, classify
from orchestrator.rollouts.capture import ROLLOUT_KEY_HEADER, Capture
from orchestrator.rollouts.compat import (
    AttemptedRollout,
    AttemptStatus,
    InMemoryLightningStore,
    LitAgent,
    NamedResources,
    Span,
    emit_reward,
    find_final_reward,
    forget_rollout,
    install_tracer,
)
from orchestrator.rollouts.outcomes import Outcome, RolloutKey

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

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
        self, agent: LitAgent[Any], *, store: InMemoryLightningStore, capture: Capture, timeout_seconds: float
    ) -> None:
        self._agent = agent
        self._store = store
        self._capture = capture
        self._timeout_seconds = timeout_seconds
        self._tracer = install_tracer()
        self._reported: deque[str] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt; ``attempt`` is 0-based and ``task`` is copied, so agents may change theirs.

        Registering and claiming in the store are one step, so that no other worker of the store takes the rollout.

        Raises:
            LookupError: the store holds no resources under ``resources_id``.
        """
        resources = await self._store.get_resources_by_id(resources_id)
        if resources is None:
            raise LookupError(
                f"rollout {key}: the store holds no resources {resources_id!r}; publish before rolling out"
            )
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
        rewards = Rewards()
        ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        self._capture.register(*ids, key, attempt)
        future = asyncio.wrap_future(self._start(rollout, resources.resources, rewards))
        try:
            ended = await asyncio.wait_for(future, self._timeout_seconds)
        except TimeoutError:
            ended = None
        finally:
            rewards.closed = True
            turns = self._capture.collect(*ids)
        if ended is None:
            await self._replace_blocked_loop()
        result = classify(ended, rewards, turns, self._timeout_seconds)
        await self._report(rollout, result)
        return result

    def close(self) -> None:
        """Cancels asynchronous agents that still run and ends their loop, without waiting for it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop)

    def _start(self, rollout: AttemptedRollout, resources: NamedResources, rewards: Rewards) -> "Future[Ended]":
        train = rollout.mode == "train"
        agent = self._agent
        if agent.is_async():
            run_async = agent.training_rollout_async if train else agent.validation_rollout_async

            async def run_task() -> Ended:
                self._tracer.send_rewards_to(rewards.add)
                return await _ended_async(run_async(rollout.input, resources, rollout))

            return asyncio.run_coroutine_threadsafe(run_task(), self._agent_loop())
        run_sync = agent.training_rollout if train else agent.validation_rollout

        def run_thread() -> Ended:
            self._tracer.send_rewards_to(rewards.add)
            return _ended_sync(lambda: run_sync(rollout.input, resources, rollout))

        return _in_daemon_thread(run_thread, name=str(rollout.rollout_id))

    def _agent_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._loop.set_default_executor(_DaemonThreads())
            Thread(target=_run_loop, args=(self._loop,), name="agents", daemon=True).start()
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
        return Ended(value=_value(await agent))
    except BaseException as error:  # a SystemExit of one agent must not end the loop of all
        return Ended(error=error)


def _ended_sync(agent: Callable[[], Any]) -> Ended:
    try:
        return Ended(value=_value(agent()))
    except BaseException as error:  # likewise
        return Ended(error=error)


def _value(returned: Any) -> Any:
    """What counts of what the agent returned: of a list of spans, its last reward."""
    return find_final_reward(returned) if isinstance(returned, list) else returned


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    agents = asyncio.all_tasks() - {asyncio.current_task()}
    for agent in agents:
        agent.cancel()
    if agents:
        await asyncio.wait(agents, timeout=CANCEL_SECONDS)
    loop.stop()


class _DaemonThreads(ThreadPoolExecutor):
    """Where ``asyncio.to_thread`` of an agent runs: a thread a call, for which nobody waits.

    The threads of a pool are few, so calls that hang would hold up every agent's; and the interpreter joins them when
    it exits, so one that hangs would keep the process alive.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Starts the call at once."""
        return _in_daemon_thread(lambda: fn(*args, **kwargs), name="agent call")


def _in_daemon_thread(run: Callable[[], T], *, name: str) -> "Future[T]":
    """Not a pool's thread: the interpreter waits for those when it exits."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def deliver() -> None:
        try:
            future.set_result(context.run(run))
        except BaseException as error:  # it belongs to whoever waits for the result
            future.set_exception(error)

    Thread(target=deliver, name=name, daemon=True).start()
    return future
