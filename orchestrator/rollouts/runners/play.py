"""One agent at play, the same under every placement: whatever it returns, emits or raises ends in a report."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol

from orchestrator.rollouts.attempts import Ended, Report, raised, report_of, returned
from orchestrator.rollouts.compat import AttemptedRollout, LitAgent, NamedResources, SpanCoreFields
from orchestrator.rollouts.rewards import Rewards
from orchestrator.rollouts.threads import claim_threads, in_daemon_thread


class RewardTracer(Protocol):
    """Agent-lightning's active tracer, which finds out about emitted rewards."""

    def send_rewards_to(self, sink: Callable[[SpanCoreFields], None]) -> None:
        """From now on, in this context."""
        ...


def play_async(
    agent: LitAgent[Any],
    rollout: AttemptedRollout,
    resources: NamedResources,
    *,
    rewards: Rewards,
    tracer: RewardTracer,
    threads: "list[Future[Any]]",
) -> Coroutine[Any, Any, Report]:
    """Plays an asynchronous agent; to be awaited in a task of its own, whose context the rewards are emitted in.

    ``threads`` gets the daemon threads that are started on the way, which may outlive the agent.
    """
    run = agent.training_rollout_async if rollout.mode == "train" else agent.validation_rollout_async

    async def play() -> Report:
        tracer.send_rewards_to(rewards.add)
        claim_threads(threads)
        return report_of(await _ended_async(lambda: run(rollout.input, resources, rollout)), rewards)

    return play()


def play_in_thread(
    agent: LitAgent[Any],
    rollout: AttemptedRollout,
    resources: NamedResources,
    *,
    rewards: Rewards,
    tracer: RewardTracer,
    threads: "list[Future[Any]]",
) -> "Future[Report]":
    """Plays a synchronous agent in a daemon thread of its own, for which nobody has to wait."""
    run = agent.training_rollout if rollout.mode == "train" else agent.validation_rollout

    def play() -> Report:
        tracer.send_rewards_to(rewards.add)
        return report_of(_ended_sync(lambda: run(rollout.input, resources, rollout)), rewards)

    future = in_daemon_thread(play, name=str(rollout.rollout_id))
    threads.append(future)
    return future


async def cancelled(tasks: Collection["asyncio.Future[Any]"], *, wait_seconds: float) -> None:
    """Cancels ``tasks`` and gives them so long for their own clean-up."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=wait_seconds)


async def _ended_async(agent: Callable[[], Coroutine[Any, Any, Any]]) -> Ended:
    try:
        return returned(await agent())
    except BaseException as error:  # a SystemExit of one agent must not end the loop of all
        return raised(error)


def _ended_sync(agent: Callable[[], Any]) -> Ended:
    try:
        return returned(agent())
    except BaseException as error:  # likewise
        return raised(error)
