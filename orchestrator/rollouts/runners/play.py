"""One agent at play, the same under every placement: whatever it returns, emits or raises ends in a report."""

import asyncio
import contextvars
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Any, ParamSpec, Protocol, TypeVar

from orchestrator.redaction import Redactor
from orchestrator.rollouts.attempts import Ended, Report, Rewards, report_of
from orchestrator.rollouts.compat import AttemptedRollout, LitAgent, NamedResources, find_final_reward

P = ParamSpec("P")
T = TypeVar("T")


class RewardTracer(Protocol):
    """Agent-lightning's active tracer, which finds out about emitted rewards."""

    def send_rewards_to(self, sink: Callable[[float], None]) -> None:
        """From now on, in this context."""
        ...


def play_async(
    agent: LitAgent[Any],
    rollout: AttemptedRollout,
    resources: NamedResources,
    *,
    rewards: Rewards,
    tracer: RewardTracer,
) -> Coroutine[Any, Any, Report]:
    """Plays an asynchronous agent; to be awaited in a task of its own, whose context the rewards are emitted in."""
    run = agent.training_rollout_async if rollout.mode == "train" else agent.validation_rollout_async

    async def play() -> Report:
        tracer.send_rewards_to(rewards.add)
        ended = await _ended_async(lambda: run(rollout.input, resources, rollout))
        return _report(ended, rewards, resources)

    return play()


def play_in_thread(
    agent: LitAgent[Any],
    rollout: AttemptedRollout,
    resources: NamedResources,
    *,
    rewards: Rewards,
    tracer: RewardTracer,
) -> "Future[Report]":
    """Plays a synchronous agent in a daemon thread of its own, for which nobody has to wait."""
    run = agent.training_rollout if rollout.mode == "train" else agent.validation_rollout

    def play() -> Report:
        tracer.send_rewards_to(rewards.add)
        ended = _ended_sync(lambda: run(rollout.input, resources, rollout))
        return _report(ended, rewards, resources)

    return in_daemon_thread(play, name=str(rollout.rollout_id))


class DaemonThreads(ThreadPoolExecutor):
    """Where ``asyncio.to_thread`` of an agent runs: a thread a call, for which nobody waits.

    The threads of a pool are few, so calls that hang would hold up every agent's; and the interpreter joins them when
    it exits, so one that hangs would keep the process alive.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Starts the call at once."""
        return in_daemon_thread(lambda: fn(*args, **kwargs), name="agent call")


def in_daemon_thread(run: Callable[[], T], *, name: str) -> "Future[T]":
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


async def cancelled(tasks: Collection["asyncio.Future[Any]"], *, wait_seconds: float) -> None:
    """Cancels ``tasks`` and gives them so long for their own clean-up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=wait_seconds)


async def _ended_async(agent: Callable[[], Coroutine[Any, Any, Any]]) -> Ended:
    try:
        return Ended(value=_value(await agent()))
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


def _report(ended: Ended, rewards: Rewards, resources: NamedResources) -> Report:
    """Without the keys that the agent was given, besides the secrets of the environment."""
    redact = Redactor()
    if ended.error is not None:
        for resource in resources.values():
            redact.add(getattr(resource, "api_key", None) or "")
    return report_of(ended, rewards, redact)
