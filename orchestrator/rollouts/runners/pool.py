"""Processes of this machine that are workers, or hold workers elsewhere, each replaced when it dies."""

import asyncio
import multiprocessing
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess

import structlog

from orchestrator.errors import EXIT_FINISHED, EXIT_USAGE, ConfigError, OrchestratorError
from orchestrator.rollouts.runners.worker import WorkerOrders, work
from orchestrator.telling import told

log = structlog.get_logger(__name__)

WORKER_MODULES = ("orchestrator.rollouts.runners.worker", "openai")
"""Imported once, in the server that workers are forked from: it has no thread, and no memory of the run's."""
RESTART_SECONDS = 1.0
"""Before a worker that died within that time is replaced, so that one that cannot live does not fill the log."""


MAX_FAILED_STARTS = 10
"""In a row, a second apart."""
SERVER_DIED = 255
"""The exit code that is told of a worker, which may well live, when the fork server has died."""


@dataclass(slots=True, eq=False)
class _Worker:
    worker_id: str
    process: ForkServerProcess
    died: asyncio.Event


class WorkerPool:
    """``num_workers`` processes that play ``agent`` for the store at ``store_address``. Belongs to one event loop."""

    def __init__(
        self,
        num_workers: int,
        *,
        store_address: str,
        agent: str,
        key: str,
        on_death: Callable[[str, str], Awaitable[None]],
        traced: bool = False,
        target: Callable[[WorkerOrders], None] = work,
    ) -> None:
        """``on_death`` gets the id of a worker that has died, and how; ``traced`` as of ``WorkerOrders``.

        ``target`` is what each process is.
        """
        self._num_workers = num_workers
        self._store_address, self._agent, self._key, self._traced = store_address, agent, key, traced
        self._on_death = on_death
        self._target = target
        self._workers: dict[str, _Worker] = {}
        # Containers share host names and process ids, and workers of one name would take each other's work.
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._started = 0
        self._stopping = asyncio.Event()
        # Starting a process also asks the others for their exit codes, and a code can be read only once.
        self._one_at_a_time = asyncio.Lock()

    @property
    def started(self) -> bool:
        """Whether there is a worker that ``stop`` can wait for."""
        return bool(self._workers)

    async def keep_alive(self) -> None:
        """Starts the workers and replaces those that die, until ``stop``; then waits for them to end.

        Raises:
            ConfigError: a worker cannot work, e.g. not load the agent, and has said why on standard error.
            OrchestratorError: likewise one that replaces another, e.g. because the cluster is gone.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._num_workers):
                    group.create_task(self._keep_one_alive())
        except* OrchestratorError as errors:
            raise errors.exceptions[0] from None
        finally:
            self.kill()

    def stop(self) -> None:
        """Lets each worker end after its current rollout."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.process.terminate()

    def kill(self) -> None:
        """Ends all workers at once."""
        self._stopping.set()
        for worker in self._workers.values():
            worker.process.kill()

    async def _keep_one_alive(self) -> None:
        loop = asyncio.get_running_loop()
        failure: type[OrchestratorError] = ConfigError
        failed_starts = 0
        while not self._stopping.is_set():
            began = loop.time()
            try:
                worker = await self._start()
            except (
                OSError,
                EOFError,
            ) as error:  # EOFError: the fork server died of it
                failed_starts += 1
                if failed_starts == MAX_FAILED_STARTS:
                    raise OrchestratorError(
                        f"agent={self._agent}: {failed_starts} times in a row no worker process could be started, the "
                        f"last time for {told(error)}. See the machine's limits of processes, memory and open files"
                    ) from error
                log.warning("a worker process could not be started; it is tried again", error=told(error))
                await asyncio.sleep(RESTART_SECONDS)
                continue
            failed_starts = 0
            await worker.died.wait()
            async with self._one_at_a_time:
                code = worker.process.exitcode
            if code == SERVER_DIED:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid or 0, signal.SIGKILL)
            del self._workers[worker.worker_id]
            if self._stopping.is_set():
                return
            if code == EXIT_USAGE:
                raise failure(f"there can be no worker for agent={self._agent}; the lines above say why")
            how = (
                f"its process was killed by {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
            )
            if code != EXIT_FINISHED:
                log.warning("a worker died and is replaced", worker=worker.worker_id, how=how)
            await self._on_death(worker.worker_id, how)
            failure = OrchestratorError
            await asyncio.sleep(max(0.0, RESTART_SECONDS - (loop.time() - began)))

    async def _start(self) -> _Worker:
        self._started += 1
        worker_id = f"{self._name}-{self._started}"
        orders = WorkerOrders(worker_id, self._store_address, self._agent, self._key, self._traced)
        process = _context().Process(target=self._target, args=(orders,), daemon=True)
        async with self._one_at_a_time:
            await asyncio.to_thread(_start_shielded, process)  # the first one waits for the fork server's imports
        worker = _Worker(worker_id, process, asyncio.Event())
        self._workers[worker_id] = worker
        loop = asyncio.get_running_loop()

        def died() -> None:
            loop.remove_reader(process.sentinel)
            worker.died.set()

        loop.add_reader(process.sentinel, died)
        if self._stopping.is_set():
            process.kill()
        return worker


def _start_shielded(process: ForkServerProcess) -> None:
    """Starts ``process``, and before the first one the server that all are forked from, with SIGTERM blocked.

    Workers open up for it themselves: one for the whole process group lets each of them end its rollout, and the server
    is not to die before they do, for they would with it.
    """
    resource_tracker.ensure_running()  # first: started on the way it would leave SIGTERM unblocked
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(WORKER_MODULES))
    return context
