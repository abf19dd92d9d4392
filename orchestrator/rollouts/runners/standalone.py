"""The ``runner`` command: workers on any machine, which play rollouts for the store of a run and outlive the run."""

import asyncio
import signal
import time
from typing import Any

import aiohttp
import structlog

from orchestrator.errors import EXIT_INTERRUPTED, EXIT_TERMINATED, ConfigError, InterruptedRunError
from orchestrator.rollouts.runners.pool import WorkerPool
from orchestrator.rollouts.runners.settings import RunnerSettings
from orchestrator.rollouts.runners.store_client import RETRY_SECONDS, StoreClient
from orchestrator.rollouts.runners.worker import speak_json

log = structlog.get_logger(__name__)

STILL_WAITING_SECONDS = 30.0
"""How often it is told that nobody answers."""
EXIT_CODES = {signal.SIGINT: EXIT_INTERRUPTED, signal.SIGTERM: EXIT_TERMINATED}


def run_workers(settings: RunnerSettings) -> int:
    """Plays rollouts until SIGTERM or SIGINT; a second signal does not wait for those that are being played.

    Raises:
        ConfigError: the store turns this runner away, or the agent cannot be loaded.
        InterruptedRunError: a signal ended it.
    """
    speak_json()
    return asyncio.run(_run(settings))


def _waiting(address: str, error: Exception, waited_seconds: float) -> dict[str, Any]:
    """Why nobody answers there, and what to look at: a wrong host waits as a run does that is not started yet."""
    advice = (
        "fine if the run is not started yet; else is store_address its store_host and store_port, and does it listen "
        "beyond 127.0.0.1 where this is another machine?"
    )
    return {"store": address, "why": type(error).__name__, "seconds": round(waited_seconds), "advice": advice}


async def _run(settings: RunnerSettings) -> int:
    loop = asyncio.get_running_loop()
    client = StoreClient(settings.store_address, key=settings.key, agent=settings.agent, traced=settings.traced)

    async def tell_death(worker_id: str, how: str) -> None:
        await client.say_goodbye(worker_id, how)

    pool = WorkerPool(
        settings.num_workers,
        store_address=settings.store_address,
        agent=settings.agent,
        key=settings.key,
        on_death=tell_death,
        traced=settings.traced,
    )
    received: list[signal.Signals] = []
    working = asyncio.create_task(_work(settings, client, pool))

    def end(number: signal.Signals) -> None:
        if received or not pool.started:
            pool.kill()
            working.cancel()
        else:
            log.info("ending after the current rollouts", signal=number.name)
            pool.stop()
        received.append(number)

    for number in EXIT_CODES:
        loop.add_signal_handler(number, end, number)
    try:
        await working
    except asyncio.CancelledError:
        if not received:
            raise
    finally:
        await client.close()
    number = received[0]
    raise InterruptedRunError(number.name, EXIT_CODES[number], then="the run goes on with the workers that it has left")


async def _work(settings: RunnerSettings, client: StoreClient, pool: WorkerPool) -> None:
    await _admitted(settings, client)
    await pool.keep_alive()


async def _admitted(settings: RunnerSettings, client: StoreClient) -> None:
    """Waits for the store, which may come up later than its workers.

    Raises:
        ConfigError: it turns this runner away.
    """
    began = time.monotonic()
    told_at: float | None = None
    while True:
        try:
            refusal = await client.refusal()
        except (aiohttp.ClientError, TimeoutError) as error:
            now = time.monotonic()
            if told_at is None or now - told_at >= STILL_WAITING_SECONDS:
                log.info("waiting for the store", **_waiting(settings.store_address, error, now - began))
                told_at = now
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if refusal is not None:
            raise ConfigError(f"store_address={settings.store_address}: {refusal}")
        return
