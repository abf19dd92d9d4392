"""A worker: Agent-lightning's runner, playing one rollout at a time for a store that may be far away."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import structlog

from orchestrator.errors import OrchestratorError, OwnWordsError
from orchestrator.process import end_with_parent
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.compat import (
    AttemptedRollout,
    CallTracer,
    LitAgent,
    LitAgentRunner,
    NamedResources,
    WorkerTracer,
)
from orchestrator.rollouts.loopback import bypass_proxies
from orchestrator.rollouts.rewards import Rewards
from orchestrator.rollouts.runners.play import RewardTracer, cancelled, play_async, play_in_thread
from orchestrator.rollouts.runners.store_client import StoreClient
from orchestrator.rollouts.threads import DaemonThreads

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 1.0
"""``worker_lost_seconds`` is at least three times as long."""
POLL_SECONDS = 0.01
"""Between requests for work, which the store holds while there is none."""
CANCEL_SECONDS = 5.0
"""Given to an agent that is cut off for its own clean-up."""
STUCK_SECONDS = 15.0
"""A worker whose agent blocks it so long past its deadline ends itself."""


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What a worker needs to know; travels through a pipe or Ray's call: no command line holds the key."""

    worker_id: str
    store_address: str
    agent: str
    """``module:attribute``; every worker imports it for itself."""
    key: str = field(repr=False)
    traced: bool = False
    """Whether the calls of the model leave spans in the store, for adapter=tracer."""


class AgentEndedError(OwnWordsError):
    """Tells Agent-lightning's runner that an attempt failed; what the agent raised is in its report."""


def work(orders: WorkerOrders) -> None:
    """The whole life of a worker process, until SIGTERM or the death of the process that started it.

    Exits with 0 when it was asked to end, and with the error's own code where the agent cannot be loaded.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, for the process that started it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see the pool
    end_with_parent()
    try:
        agent = prepare(orders)
    except OrchestratorError as error:
        log.critical("the agent cannot be loaded", why=str(error))
        os._exit(error.exit_code)
    asyncio.run(play_rollouts(orders, agent, end_on=(signal.SIGTERM,)))
    sys.stderr.flush()
    os._exit(0)  # threads that agents left behind must not keep it


def prepare(orders: WorkerOrders) -> LitAgent[Any]:
    """Makes this process a worker's: how it logs, how its agent calls; gives the agent.

    Raises:
        ConfigError: the agent cannot be loaded.
    """
    speak_json(worker=orders.worker_id)
    # Agent-lightning's lines quote what agents raise; ours tell what it does.
    logging.getLogger("agentlightning").setLevel(logging.CRITICAL)
    bypass_proxies()
    return load_agent(orders.agent)


def speak_json(**context: Any) -> None:
    """From now on this process logs one JSON object a line on standard error; third-party loggers are not shown."""
    structlog.contextvars.bind_contextvars(**context)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.root.addHandler(logging.NullHandler())


async def play_rollouts(orders: WorkerOrders, agent: LitAgent[Any], *, end_on: Collection[signal.Signals] = ()) -> None:
    """Plays what the store has, until one of the signals ``end_on`` comes, and then to the end of that rollout."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreads())
    store = StoreClient(orders.store_address, key=orders.key, agent=orders.agent, traced=orders.traced)
    stop = threading.Event()

    def end_after_this_rollout() -> None:
        stop.set()
        store.stop()

    for number in end_on:
        loop.add_signal_handler(number, end_after_this_rollout)
    tracer = CallTracer() if orders.traced else WorkerTracer()
    runner = _NamedRunner(orders.worker_id, tracer)
    runner.init(_ReportingAgent(agent, store, tracer, leave=end_after_this_rollout))
    runner.init_worker(0, store)
    log.info("worker ready", store=orders.store_address, pid=os.getpid())
    await runner.iter(event=stop)
    await store.say_goodbye(orders.worker_id, "it was asked to end")
    await store.close()
    log.info("worker ended")


class _NamedRunner(LitAgentRunner[Any]):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Agent-lightning's runner under a name that no worker on another machine has."""

    def __init__(self, worker_id: str, tracer: WorkerTracer | CallTracer) -> None:
        super().__init__(
            tracer,
            poll_interval=POLL_SECONDS,
            heartbeat_interval=HEARTBEAT_SECONDS,
            interval_jitter=0.0,
        )
        self._name = worker_id

    def get_worker_id(self) -> str:
        return self._name

    async def _step_impl(self, next_rollout: AttemptedRollout, raise_on_exception: bool = False) -> str:
        """Agent-lightning's fetches the resources outside of what it catches: a store that dies then is no end."""
        try:
            return str(await super()._step_impl(next_rollout, raise_on_exception))
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("a rollout is left: the store does not answer", error=type(error).__name__)
            return str(next_rollout.rollout_id)


class _ReportingAgent(LitAgent[Any]):  # type: ignore[misc]
    """The user's agent, kept to its deadline, whose end is reported before Agent-lightning's runner tells of it."""

    def __init__(
        self, agent: LitAgent[Any], store: StoreClient, tracer: RewardTracer, *, leave: Callable[[], None]
    ) -> None:
        """``leave`` is called when this process should play no further rollout."""
        super().__init__()
        self._agent, self._store, self._tracer, self._leave = agent, store, tracer, leave

    def is_async(self) -> bool:
        return True

    def set_runner(self, runner: Any) -> None:
        super().set_runner(runner)
        self._agent.set_runner(runner)

    async def training_rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return await self._play(resources, rollout)

    async def validation_rollout_async(self, task: Any, resources: NamedResources, rollout: AttemptedRollout) -> Any:
        return await self._play(resources, rollout)

    async def _play(self, resources: NamedResources, rollout: AttemptedRollout) -> float | None:
        facts = {"rollout": rollout.metadata["rollout_key"], "attempt": rollout.metadata["attempt"]}
        timeout_seconds = rollout.config.timeout_seconds
        rewards, threads = Rewards(), list[Future[Any]]()
        playing = self._start(resources, rollout, rewards, threads)
        watchdog = threading.Timer(timeout_seconds + STUCK_SECONDS, _end_stuck)
        watchdog.daemon = True
        watchdog.start()
        try:
            done, _ = await asyncio.wait({playing}, timeout=timeout_seconds)
            rewards.close()
            if not done:
                await cancelled({playing}, wait_seconds=CANCEL_SECONDS)
                log.warning("rollout cut off at its deadline", timeout_seconds=timeout_seconds, **facts)
                if not playing.done() or not all(thread.done() for thread in threads):
                    # It cannot be ended, and the spans of what it goes on doing would count for the next rollout.
                    log.warning("what was cut off still runs; another process takes this worker's place", **facts)
                    self._leave()
                raise AgentEndedError("it did not return in time")
        finally:
            watchdog.cancel()
        report = playing.result()
        await self._store.report(rollout.rollout_id, rollout.attempt.attempt_id, report)
        log.info("rollout ended", raised=report.error is not None, **facts)
        if report.error is not None:
            raise AgentEndedError("it raised; the run's stored rollout has the error")
        return report.reward

    def _start(
        self, resources: NamedResources, rollout: AttemptedRollout, rewards: Rewards, threads: "list[Future[Any]]"
    ) -> "asyncio.Future[Report]":
        if self._agent.is_async():
            return asyncio.create_task(
                play_async(self._agent, rollout, resources, rewards=rewards, tracer=self._tracer, threads=threads)
            )
        return asyncio.wrap_future(
            play_in_thread(self._agent, rollout, resources, rewards=rewards, tracer=self._tracer, threads=threads)
        )


def _end_stuck() -> None:
    """The agent blocks the event loop, so nothing gentler is possible: another worker takes this one's place."""
    log.error("the agent blocks its worker past the deadline; the worker ends itself")
    sys.stderr.flush()
    os._exit(1)
