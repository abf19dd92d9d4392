"""A backend one of whose requests is never answered."""

import asyncio
from collections.abc import Callable
from typing import Any


class Hanging:
    """Everything of ``inner``, and of the clients it makes, but one request, which is taken and never replied to."""

    def __init__(self, inner: Any, request: str) -> None:
        """``request`` without its ``_async``, e.g. ``optim_step``."""
        self._inner = inner
        self._request = request

    def __getattr__(self, name: str) -> Any:
        """The request that hangs, a client of which one may hang, or what ``inner`` has."""
        found = getattr(self._inner, name)
        if name.removesuffix("_async") == self._request:
            return self._never
        if name == "create_rest_client":
            return lambda: Hanging(found(), self._request)
        return self._making(found) if name.startswith("create_") else found

    def _making(self, create: Callable[..., Any]) -> Callable[..., Any]:
        async def made(*args: Any, **kwargs: Any) -> Hanging:
            return Hanging(await create(*args, **kwargs), self._request)

        return made

    async def _never(self, *_args: Any, **_kwargs: Any) -> Any:
        return await asyncio.Event().wait()
