"""Runs agents inside this process, one attempt at a time each, many at once, and says how every attempt ended."""

import asyncio
import contextvars
import copy
import math
import re
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.compat import (
    AttemptedRollout,
    AttemptStatus,
    LightningStore,
    LitAgent,
    NamedResources,
    Span,
    emit_reward,
    find_final_reward,
    install_tracer,
)
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, Turn

WORKER = "inline"
MAX_MESSAGE_CHARACTERS = 500
MAX_FRAMES = 8
CANCEL_SECONDS = 5.0
"""Given to cancelled agents for their own clean-up when the runner is closed."""
ATTEMPT_STATUS: dict[Outcome, AttemptStatus] = {Outcome.SUCCEEDED: "succeeded", Outcome.TIMED_OUT: "timeout"}
"""What the store is told; every other outcome is ``failed`` there."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt at a rollout ended."""

    outcome: Outcome
    reward: float | None
    """None where there is none, or where it is not finite."""
    turns: tuple[Turn, ...]
    error: str | None


class Runner(Protocol):
    """Where attempts are run: in this process, in others, or on other machines."""

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        """Runs one attempt to its end or its deadline; cancelling it abandons the attempt and its turns."""
        ...


class InlineRunner:
    """Runs attempts in this process.

    Asynchronous agents are tasks on one event loop in a daemon thread of their own, so an agent that blocks can hold
    up other agents but never the run's deadlines and signals. Each synchronous agent has a daemon thread. One that does
    not return in ``timeout_seconds`` is cancelled (asynchronous) or abandoned (synchronous): from then on its calls are
    refused, its rewards ignored, and its thread cannot keep the process alive.
    """

    def __init__(
        self, agent: LitAgent[Any], *, store: LightningStore, capture: Capture, timeout_seconds: float
    ) -> None:
        self._agent = agent
        self._store = store
        self._capture = capture
        self._timeout_seconds = timeout_seconds
        self._tracer = install_tracer()
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
            metadata={"rollout_key": str(key), "attempt": attempt},
            worker_id=WORKER,
        )
        rewards = _Rewards()
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
        result = _classify(ended, rewards, turns, self._timeout_seconds)
        await self._report(rollout, result)
        return result

    def close(self) -> None:
        """Cancels asynchronous agents that still run and ends their loop, without waiting for it."""
        loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_wind_up(loop), loop)

    def _start(self, rollout: AttemptedRollout, resources: NamedResources, rewards: "_Rewards") -> "Future[_Ended]":
        train = rollout.mode == "train"
        agent = self._agent
        if agent.is_async():
            run_async = agent.training_rollout_async if train else agent.validation_rollout_async

            async def run_task() -> _Ended:
                self._tracer.send_rewards_to(rewards.add)
                return await _ended_async(run_async(rollout.input, resources, rollout))

            return asyncio.run_coroutine_threadsafe(run_task(), self._agent_loop())
        run_sync = agent.training_rollout if train else agent.validation_rollout

        def run_thread() -> _Ended:
            self._tracer.send_rewards_to(rewards.add)
            return _ended_sync(lambda: run_sync(rollout.input, resources, rollout))

        return _in_daemon_thread(run_thread, name=str(rollout.rollout_id))

    def _agent_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            Thread(target=_run_loop, args=(self._loop,), name="agents", daemon=True).start()
        return self._loop

    async def _report(self, rollout: AttemptedRollout, result: AttemptResult) -> None:
        """Shows the attempt's end in the store, as Agent-lightning's own runner would."""
        rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
        if result.reward is not None:
            sequence_id = await self._store.get_next_span_sequence_id(rollout_id, attempt_id)
            reward = emit_reward(result.reward, propagate=False)
            await self._store.add_span(
                Span.from_core_fields(reward, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence_id)
            )
        await self._store.update_attempt(rollout_id, attempt_id, status=ATTEMPT_STATUS.get(result.outcome, "failed"))


@dataclass(slots=True)
class _Rewards:
    """One attempt's own sink; what comes after the attempt's end is ignored."""

    last: float | None = None
    closed: bool = False

    def add(self, reward: float) -> None:
        if not self.closed:
            self.last = reward


@dataclass(frozen=True, slots=True)
class _Ended:
    """What the agent returned, or raised. An exception travels as a value: futures cannot hold a StopIteration."""

    value: Any = None
    error: BaseException | None = None


async def _ended_async(agent: Coroutine[Any, Any, Any]) -> _Ended:
    try:
        return _Ended(value=await agent)
    except BaseException as error:  # a SystemExit of one agent must not end the loop of all
        return _Ended(error=error)


def _ended_sync(agent: Callable[[], Any]) -> _Ended:
    try:
        return _Ended(value=agent())
    except BaseException as error:  # likewise
        return _Ended(error=error)


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


def _in_daemon_thread(run: Callable[[], _Ended], *, name: str) -> "Future[_Ended]":
    """Not an executor's thread: the interpreter waits for those when it exits."""
    future: Future[_Ended] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()
    Thread(target=lambda: future.set_result(context.run(run)), name=name, daemon=True).start()
    return future


def _classify(
    ended: _Ended | None, rewards: _Rewards, turns: tuple[Turn, ...], timeout_seconds: float
) -> AttemptResult:
    if ended is None:
        problem = f"the agent did not return within {timeout_seconds:g} s (rollout_timeout_seconds)"
        return AttemptResult(Outcome.TIMED_OUT, None, turns, problem)
    if ended.error is not None:
        return AttemptResult(Outcome.FAILED, None, turns, _describe(ended.error))
    reward, invalid = _reward(ended.value, rewards)
    if not turns:
        problem = (
            "the agent returned without having called the model. Does its client use base_url=llm.endpoint and "
            "api_key=llm.api_key, rather than an address and a key of its own?"
        )
        return AttemptResult(Outcome.EMPTY, reward, turns, problem)
    num_invalid = sum(not turn.valid for turn in turns)
    if num_invalid:
        invalid = f"{num_invalid} of {len(turns)} turns lack token ids or logprobs, or have unequal numbers of them"
    return AttemptResult(Outcome.INVALID if invalid else Outcome.SUCCEEDED, reward, turns, invalid)


def _reward(value: Any, rewards: _Rewards) -> tuple[float | None, str | None]:
    """The reward and, where there is no finite one, why: the returned number wins over the last emitted one.

    True and False count as 1.0 and 0.0, as they do in ``emit_reward``. A returned list of spans is searched for its
    last reward.
    """
    if isinstance(value, list):
        value = find_final_reward(value)
    if value is None:
        value = rewards.last
    if value is None:
        return None, "no reward: return a number from the agent, or call agentlightning.emit_reward before it returns"
    if not isinstance(value, Real):
        return None, f"the agent returned a {type(value).__name__}; expected a number, or None after emit_reward"
    reward = float(value)
    return (reward, None) if math.isfinite(reward) else (None, f"the reward is {reward}; expected a finite number")


def _describe(error: BaseException) -> str:
    """Type, shortened message and innermost frames of the error and of its cause.

    Never locals, and none of the ids and addresses that differ between two runs of the same rollout.
    """
    message = re.sub(r"https?://[^\s'\"]*/rollout/[^/\s]+/attempt/[^/\s'\"]+", "<llm.endpoint>", str(error))
    message = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x...", message)
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[:MAX_MESSAGE_CHARACTERS]}..."
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    described = f"{type(error).__name__}: {message} ({where})"
    return described if error.__cause__ is None else f"{described}, caused by {_describe(error.__cause__)}"
