"""The runner that a run's ``placement`` asks for, and what has to be up for it."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.config import Config
from orchestrator.disk import Disk
from orchestrator.errors import OrchestratorError
from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import Runner
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.compat import InMemoryLightningStore, LitAgent
from orchestrator.rollouts.runners.claims import Claims
from orchestrator.rollouts.runners.inline import InlineRunner
from orchestrator.rollouts.runners.on_ray import hold_workers, ray_workers
from orchestrator.rollouts.runners.pool import WorkerPool
from orchestrator.rollouts.runners.queued import QueuedRunner
from orchestrator.rollouts.runners.store_key import run_key
from orchestrator.rollouts.runners.store_server import StoreServer
from orchestrator.rollouts.runners.worker import work
from orchestrator.telling import told

LOOPBACK = "127.0.0.1"
NO_ROOM = (
    "Ray has started none of the {0.num_workers} workers of {0.ray_num_cpus:g} CPUs each: `ray status` on the cluster "
    "shows what is free"
)
NOT_UP = "none of the run's own worker processes is up; the lines above say why, if they are not just starting"


@asynccontextmanager
async def open_runner(
    config: Config,
    log_path: Path,
    agent: LitAgent[Any],
    *,
    store: InMemoryLightningStore,
    capture: Capture,
    spans: SpanTurns | None,
    disk: Disk,
    keep_secret: Callable[[str], None],
) -> AsyncIterator[Runner]:
    """The runner of ``config.placement``, while the context is entered; ``keep_secret`` gets the store's key.

    ``spans``: where the turns that are trained on are read instead of in ``capture``.

    Raises:
        ConfigError: the store's key is none.
        GatewayError: the store's address cannot be had.
    """
    if config.placement == "inline":
        inline = InlineRunner(
            agent, store=store, capture=capture, timeout_seconds=config.rollout_timeout_seconds, spans=spans
        )
        with closing(inline):
            yield inline
        return
    here, on_ray = config.placement == "processes", config.placement == "ray"
    key = secrets.token_hex(24) if here or on_ray else run_key(log_path, disk=disk)
    keep_secret(key)
    claims = Claims(capture, config.worker_lost_seconds)
    host, port = (LOOPBACK, 0) if here else (config.store_host, config.store_port)
    traced = config.adapter == "tracer"
    server = StoreServer(
        store,
        claims,
        host=host,
        port=port,
        key=key,
        agent=config.agent,
        traced=traced,
        advice=NO_ROOM.format(config) if on_ray else NOT_UP if here else None,
    )
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)
        if here or on_ray:
            pool = WorkerPool(
                1 if on_ray else config.num_workers,
                store_address=server.address,
                agent=config.agent,
                key=key,
                on_death=server.leave,
                traced=traced,
                target=partial(hold_workers, ray_workers(config)) if on_ray else work,
            )
            await stack.enter_async_context(_kept_alive(pool, claims))
        runner = QueuedRunner(store=store, claims=claims, timeout_seconds=config.rollout_timeout_seconds, spans=spans)
        with telling_the_end(claims):
            yield runner


@contextmanager
def telling_the_end(claims: Claims) -> Iterator[None]:
    """Workers live longer than a run: those that ask for work at its end are told how it ended."""
    try:
        yield
    except BaseException:  # a kill by a signal among them: it is told, and goes on
        claims.over = "the run has stopped; it has work again when it is resumed"
        raise
    claims.over = "the run has finished; another one may have work"


@asynccontextmanager
async def _kept_alive(pool: WorkerPool, claims: Claims) -> AsyncIterator[None]:
    async def keep_alive() -> None:
        try:
            await pool.keep_alive()
        except OrchestratorError as error:
            claims.fail(error)
        except Exception as error:  # whatever it is, nobody would come any more, and nobody would say so
            claims.fail(OrchestratorError(f"workers can no longer be kept alive: {told(error)}"))

    keeping = asyncio.create_task(keep_alive())
    try:
        yield
    finally:
        pool.kill()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
