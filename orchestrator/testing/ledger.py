"""Every request to the backend, written down where a kill cannot reach it, by a wrapper around the service client."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinker import types

from orchestrator.backends.surface import ServiceClient


class LedgerService:
    """A service client around another one: every request goes into a ledger file and past an observer.

    The ledger outlives a kill: a line a request, appended before the request is made, with the process id, the request
    and what identifies it; and a line with what was sampled once the reply of a ``sample`` is here, see
    ``read_replies``. ``observer`` is called with ``request:before:<name>`` and ``request:after:<name>``.
    """

    def __init__(self, service: ServiceClient, ledger: Path, observer: Callable[[str], None]) -> None:
        """``ledger`` is made where missing."""
        self._service = service
        self._ledger = ledger
        self._observer = observer
        self._calls = itertools.count()

    def __getattr__(self, name: str) -> Any:
        """What makes a training or sampling client gives it with the same ledger; the rest is the service's own."""
        found = getattr(self._service, name)
        if name == "create_rest_client":
            return lambda: _LedgerClient(found(), self)
        return self.recorded(name, found) if name.startswith("create_") else found

    def recorded(self, name: str, request: Callable[..., Any]) -> Callable[..., Any]:
        """``request`` with its line in the ledger; clients that it makes are wrapped likewise."""
        short = name.removesuffix("_async")

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._observer(f"request:before:{short}")
            number = self.write(short, args, kwargs)
            reply = await request(*args, **kwargs)
            if isinstance(reply, types.SampleResponse):
                self._append({"reply_to": number, "sampled": [list(sequence.tokens) for sequence in reply.sequences]})
            self._observer(f"request:after:{short}")
            return _LedgerClient(reply, self) if name.startswith("create_") else reply

        return call

    def write(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """One line of the ledger; returns the request's number in this process."""
        number = next(self._calls)
        told = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
        prompts = [value for value in (*args, *kwargs.values()) if isinstance(value, types.ModelInput)]
        params = [value for value in (*args, *kwargs.values()) if isinstance(value, types.SamplingParams)]
        datums = args[0] if name == "forward_backward" else ()
        self._append(
            {
                "number": number,
                "request": name,
                "names": told,
                "prompt": [prompt.to_ints() for prompt in prompts],
                "seed": [param.seed for param in params],
                "temperature": [param.temperature for param in params],
                "datums": [datum.model_input.to_ints() for datum in datums],
            }
        )
        return number

    def _append(self, line: dict[str, Any]) -> None:
        # It holds prompts, as tokens.
        with open(self._ledger, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(json.dumps({"pid": os.getpid(), **line}).encode() + b"\n")


class _LedgerClient:
    """A training, sampling or rest client whose requests are recorded."""

    def __init__(self, client: Any, service: LedgerService) -> None:
        self._client = client
        self._service = service

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name in {"get_tokenizer", "get_info_async"}:
            return found
        return self._service.recorded(name, found)


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """A ledger's lines about requests, in the order they were made; what a kill tore is left out."""
    return [line for line in _lines(ledger) if "request" in line]


def read_replies(ledger: Path) -> list[dict[str, Any]]:
    """A ledger's lines about replies: ``pid``, ``reply_to`` (the request's ``number``) and the tokens ``sampled``."""
    return [line for line in _lines(ledger) if "reply_to" in line]


def _lines(ledger: Path) -> list[dict[str, Any]]:
    text = ledger.read_text() if ledger.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
