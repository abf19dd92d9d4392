"""A worker's side of the store: Agent-lightning's client with the run's key, which outlives the run it speaks to."""

import asyncio
import contextlib
import time
from dataclasses import asdict
from typing import Any

import aiohttp
import structlog

from orchestrator.rollouts.attempts import Report
from orchestrator.rollouts.compat import (
    OTLP_LOSES_SPANS,
    AttemptedRollout,
    LightningStoreClient,
    Span,
    without_none,
)
from orchestrator.rollouts.runners.store_server import (
    AGENT_HEADER,
    CONFLICT,
    DEQUEUE_PATH,
    GONE,
    HEALTH_PATH,
    OVER,
    REPORT,
    UNAUTHORIZED,
    played,
)

log = structlog.get_logger(__name__)

RETRY_SECONDS = 0.5
"""Between requests for work to a store that does not answer or turns the worker away."""


class StoreClient(LightningStoreClient):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """One worker's connection to the store of a run, which may die and come back while the worker lives."""

    def __init__(self, address: str, *, key: str, agent: str, traced: bool = False) -> None:
        """``agent`` is what the worker plays, as ``module:attribute``; ``traced``: with a tracer of its calls."""
        super().__init__(address)
        self._headers = {"Authorization": f"Bearer {key}", AGENT_HEADER: played(agent, traced=traced)}
        self._polling: asyncio.Task[Any] | None = None
        self._trouble: str | None = None
        self._over = False
        self._stopped = asyncio.Event()

    @property
    def capabilities(self) -> Any:
        """Those of Agent-lightning's client, without what loses spans."""
        return {**super().capabilities, **OTLP_LOSES_SPANS}

    async def dequeue_rollout(self, worker_id: str | None = None) -> AttemptedRollout | None:
        """The next rollout, as soon as there is one; None after some seconds without, or once ``stop`` was called."""
        if self._stopped.is_set():
            return None
        self._polling = asyncio.create_task(self._dequeue(worker_id))
        try:
            return await self._polling
        except asyncio.CancelledError:
            if not self._stopped.is_set():
                raise
            return None

    def stop(self) -> None:
        """No rollout is asked for any more, and a request for one is given up. On the loop of ``dequeue_rollout``."""
        self._stopped.set()
        if self._polling is not None:
            self._polling.cancel()

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: Any, sequence_id: int | None = None
    ) -> Span | None:
        """As Agent-lightning's, of what its spans can hold."""
        span: Span | None = await super().add_otel_span(
            rollout_id, attempt_id, without_none(readable_span), sequence_id
        )
        return span

    async def report(self, rollout_id: str, attempt_id: str, report: Report) -> None:
        """Tells how an attempt ended, before Agent-lightning's runner tells that it did.

        A run that does not want to know, because it is over for it or because it has died, is none of the agent's
        business: the attempt is played again.
        """
        try:
            await self.update_attempt(rollout_id, attempt_id, metadata={REPORT: asdict(report)})
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("the end of a rollout was not taken", rollout_id=rollout_id, error=_kind(error))

    async def say_goodbye(self, worker_id: str, why: str) -> None:
        """The worker will not be heard of again; does not wait for a store that is away."""
        session = await self._get_session()
        url = f"{self.server_address}/workers/{worker_id}"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # then its silence tells
            async with session.post(url, json={"heartbeat_stats": {GONE: why}}) as reply:
                await reply.read()

    async def refusal(self) -> str | None:
        """Why the store wants no worker like this one; None when it takes it.

        Raises:
            aiohttp.ClientError, TimeoutError: it does not answer.
        """
        session = await self._get_session()
        async with session.get(f"{self.server_address_root}{HEALTH_PATH}") as reply:
            return await _refusal(reply)

    async def _dequeue(self, worker_id: str | None) -> AttemptedRollout | None:
        session = await self._get_session()
        began = time.monotonic()
        try:
            async with session.post(
                f"{self.server_address_root}{DEQUEUE_PATH}", json={"limit": 1, "worker_id": worker_id}
            ) as reply:
                trouble = await _refusal(reply)
                found = [] if trouble else await reply.json()
                self._over = reply.status == OVER
        except (aiohttp.ClientError, TimeoutError) as error:
            # Silence after an end that was told is no news; without one, the run or its machine has died.
            trouble, found = self._trouble if self._over else f"it does not answer ({_kind(error)})", []
        if trouble != self._trouble:
            log.warning("the store has no work", why=trouble) if trouble else log.info("the store answers again")
            self._trouble = trouble
        if trouble:
            await asyncio.sleep(max(0.0, RETRY_SECONDS - (time.monotonic() - began)))
        return AttemptedRollout.model_validate(found[0]) if found else None

    async def _get_session(self) -> aiohttp.ClientSession:
        """Agent-lightning's session of the running loop, with our headers."""
        session: aiohttp.ClientSession = await super()._get_session()
        session.headers.update(self._headers)
        return session


async def _refusal(reply: aiohttp.ClientResponse) -> str | None:
    if reply.status in {UNAUTHORIZED, CONFLICT, OVER}:
        return str((await reply.json())["detail"])
    reply.raise_for_status()
    return None


def _kind(error: Exception) -> str:
    status = getattr(error, "status", None)
    return type(error).__name__ if status is None else f"{type(error).__name__} {status}"
