"""A service client around the embedded backend's: slower as a remote service is, with every request timed."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

REMOTE: Mapping[str, float] = {
    "sample": 0.2,
    "forward_backward": 2.0,
    "save_state": 1.0,
    "save_weights_for_sampler": 1.0,
}
"""Seconds that a remote service adds to each request of a kind; an optimizer step comes with its gradients."""


@dataclass
class Requests:
    """What was asked of a service, and when each request was under way."""

    spans: list[tuple[str, float, float]] = field(default_factory=list)
    """Request, and from when to when in ``time.perf_counter()`` seconds."""
    free_at: float = 0.0
    """When the last ordered training request is done: a service carries them out one after the other."""

    @property
    def counts(self) -> Counter[str]:
        """How often each request was made."""
        return Counter(request for request, _, _ in self.spans)


class PacedService:
    """Everything of ``inner`` and of the clients it makes, each request timed and given ``pace`` more seconds."""

    def __init__(self, inner: Any, pace: Mapping[str, float], requests: Requests) -> None:
        """``pace`` by request without its ``_async``; absent: nothing is added."""
        self._inner = inner
        self._pace = pace
        self._requests = requests

    def __getattr__(self, name: str) -> Any:
        """A timed request, or what ``inner`` has."""
        found = getattr(self._inner, name)
        if name == "create_rest_client":
            return lambda: PacedService(found(), self._pace, self._requests)
        if name in {"get_tokenizer", "get_info_async", "get_tokenizer_async", "close"}:
            return found
        return self._timed(name.removesuffix("_async"), found)

    def _timed(self, request: str, asked: Callable[..., Any]) -> Callable[..., Any]:
        seconds = self._pace.get(request, 0.0)

        async def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            reply = await asked(*args, **kwargs)
            if hasattr(reply, "result_async"):
                ready_at = self._requests.free_at = max(began, self._requests.free_at) + seconds
                return _PacedFuture(reply, request, began, ready_at, self._requests)
            if seconds:
                await asyncio.sleep(seconds)
            self._requests.spans.append((request, began, time.perf_counter()))
            return PacedService(reply, self._pace, self._requests) if request.startswith("create_") else reply

        return call


@dataclass
class _PacedFuture:
    """An ordered request, whose reply is here no sooner than ``ready_at``."""

    inner: Any
    request: str
    began: float
    ready_at: float
    requests: Requests

    async def result_async(self, timeout: float | None = None) -> Any:
        reply = await self.inner.result_async(timeout)
        wait_seconds = self.ready_at - time.perf_counter()
        if wait_seconds > 0:
            await asyncio.sleep(wait_seconds)
        self.requests.spans.append((self.request, self.began, time.perf_counter()))
        return reply
