"""Workers that are tasks of a Ray cluster, and the process that holds them there.

Ray is only in that process and never in the run's, whose signals it would take and which it would abort when the
cluster's head dies. Ray ends the tasks of a process that ends, however it does; so the workers end with the run.
"""

import asyncio
import ipaddress
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from orchestrator.config import Config
from orchestrator.errors import EXIT_USAGE, ConfigError, OrchestratorError
from orchestrator.process import end_with_parent
from orchestrator.rollouts.runners.requirements import check_answers
from orchestrator.rollouts.runners.store_client import StoreClient
from orchestrator.rollouts.runners.worker import WorkerOrders, play_rollouts, prepare, speak_json

log = structlog.get_logger(__name__)

CONNECT_SECONDS = 60.0
"""For joining the cluster, which takes a few."""
RESTART_SECONDS = 1.0
"""Between the starts of a worker and of the one that replaces it."""


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """The workers that one process holds."""

    address: str
    """``auto`` or ``HOST:PORT``."""
    num_workers: int
    num_cpus: float
    """Kept by Ray for each."""
    only_here: tuple[str, ...]
    """Settings whose address only this machine can call."""


def ray_workers(config: Config) -> RayWorkers:
    """Those that a configuration with ``placement=ray`` asks for."""
    gateway = "gateway_host" if config.gateway_address is None else "gateway_address"
    called = {
        "store_host": config.store_host,
        gateway: config.gateway_host if config.gateway_address is None else urlsplit(config.gateway_address).hostname,
    }
    only_here = tuple(name for name, host in called.items() if host is None or _is_loopback(host))
    return RayWorkers(str(config.ray_address), config.num_workers, config.ray_num_cpus, only_here)


def hold_workers(workers: RayWorkers, orders: WorkerOrders) -> None:
    """The whole life of the process that holds ``workers``, until the one that started it dies.

    Exits with the error's own code where the cluster cannot be used or the agent not be loaded there.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's, for the process that started this one
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see the pool
    end_with_parent()
    speak_json(worker=orders.worker_id)
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - to the end: Ray prints there what befalls the cluster
    try:
        with _within(CONNECT_SECONDS, workers.address):
            _connect(workers)
        asyncio.run(_hold(workers, orders))
    except OrchestratorError as error:
        log.critical("no worker can be held on Ray", why=str(error))
        sys.stderr.flush()
        os._exit(error.exit_code)


@contextmanager
def _within(seconds: float, address: str) -> Iterator[None]:
    """Ends this process where the block takes longer: Ray waits for ever for what answers and is no cluster's head."""

    def give_up() -> None:
        log.critical(
            "no worker can be held on Ray",
            why=f"ray_address={address}: what answers there has not been the head of a Ray cluster for {seconds:g} s",
        )
        sys.stderr.flush()
        os._exit(EXIT_USAGE)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def play_on_node(orders: WorkerOrders) -> str:
    """The whole life of a worker, a task on any node; ends only where it cannot begin, and says why."""
    try:
        agent = prepare(orders)
    except OrchestratorError as error:
        return str(error)
    try:
        asyncio.run(play_rollouts(orders, agent))
    except Exception as error:  # a worker process would end, too: it is replaced, and its threads end with it
        log.critical("the worker fails", error=type(error).__name__)
    sys.stderr.flush()
    os._exit(1)


def _connect(workers: RayWorkers) -> None:
    """Makes this process one of the cluster's.

    Raises:
        ConfigError: there is no cluster, it does not take this process, or it could not call back.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray  # only where it is used: it is optional

    check_answers(workers.address)
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        ray.init(address=workers.address, configure_logging=False, log_to_driver=False)
    except Exception as error:  # each reason has its own; their words are Ray's, of addresses and versions
        raise ConfigError(
            f"ray_address={workers.address}: Ray does not take this process ({type(error).__name__}: {error}). Start "
            "a node on this machine with `ray start`, by the same versions of Ray and Python as the cluster's"
        ) from error
    check_reachable(workers, {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})


def check_reachable(workers: RayWorkers, machines: Collection[str]) -> None:
    """Refuses loopback where some of the cluster's ``machines`` are others.

    Raises:
        ConfigError: workers there could not call the store or the gateway.
    """
    if len(machines) > 1 and workers.only_here:
        raise ConfigError(
            f"{' and '.join(workers.only_here)}: the cluster has {len(machines)} machines, and only this one can call "
            "a loopback address. Give an address of this machine that the others can call, for the store (store_host) "
            "and for the gateway (gateway_host, or gateway_address)"
        )


async def _hold(workers: RayWorkers, orders: WorkerOrders) -> None:
    """Starts the workers and replaces those that die.

    Raises:
        ConfigError: a node cannot load the agent, or not even this module.
        OrchestratorError: the cluster's node on this machine is gone, and with it the way to all others.
    """
    import ray  # as above

    start = ray.remote(play_on_node).options(
        num_cpus=workers.num_cpus, max_retries=0, scheduling_strategy="SPREAD", name=f"orchestrator {orders.agent}"
    )
    store = StoreClient(orders.store_address, key=orders.key, agent=orders.agent, traced=orders.traced)
    numbers = itertools.count(1)
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(workers.num_workers):
                group.create_task(_keep_one_alive(start, orders, store, numbers))
    except* OrchestratorError as errors:
        raise errors.exceptions[0] from None


async def _keep_one_alive(start: Any, orders: WorkerOrders, store: StoreClient, numbers: Iterator[int]) -> None:
    from ray.exceptions import LocalRayletDiedError, RayError, RayTaskError  # as above

    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        worker = replace(orders, worker_id=f"{orders.worker_id}-{next(numbers)}")
        try:
            problem = await asyncio.wrap_future(start.remote(worker).future())
        except RayTaskError as error:  # `play_on_node` raises nothing itself
            raise ConfigError(
                "placement=ray: a node cannot import the orchestrator. Install the same packages for the "
                "cluster's Python as for the run's; the log of the task has the error"
            ) from error
        except LocalRayletDiedError as error:  # from now on no task can be started: the next process may find a node
            raise OrchestratorError("the Ray node of this machine is gone; give it another with `ray start`") from error
        except RayError as error:
            how = f"Ray says {type(error).__name__}"
        else:
            raise ConfigError(f"on a node of the cluster: {problem}")
        log.warning("a worker died and is replaced", worker=worker.worker_id, how=how)
        await store.say_goodbye(worker.worker_id, how)
        await asyncio.sleep(max(0.0, RESTART_SECONDS - (loop.time() - began)))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
