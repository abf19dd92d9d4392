"""Public fakes for tests of agents and of this project: real classes that count and can wait, no patching."""

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from tinker import types

from orchestrator.backends.surface import ServiceClient
from orchestrator.journal.durable import sha256_of
from orchestrator.journal.log import read_journal

Answer = Callable[[Sequence[int], types.SamplingParams], Sequence[int]]
"""The tokens sampled for a prompt."""


class FakeSamplingClient:
    """A sampling client that answers from a function, counts its calls, and holds them back while told to.

    It may be used from any event loop and thread; ``calls`` and ``arrived`` may be read from another.
    """

    def __init__(self, answer: Answer, *, logprob: float = -0.5, fail_calls: frozenset[int] = frozenset()) -> None:
        """``logprob`` is every token's; the calls numbered (0-based) in ``fail_calls`` raise a ConnectionError."""
        self.calls: list[tuple[tuple[int, ...], types.SamplingParams]] = []
        self.arrived: SimpleQueue[int] = SimpleQueue()
        """Gets the number of each call when it arrives, before it is held back."""
        self._answer = answer
        self._logprob = logprob
        self._fail_calls = fail_calls
        self._open: Future[None] = Future()
        self._open.set_result(None)
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Calls that arrive from now on wait for ``release``."""
        self._open = Future()

    def release(self) -> None:
        """Lets all calls go on."""
        self._open.set_result(None)

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        """``num_samples`` times the answer.

        Raises:
            ConnectionError: the call's number is in ``fail_calls``.
        """
        tokens = tuple(prompt.to_ints())
        with self._lock:
            number = len(self.calls)
            self.calls.append((tokens, sampling_params))
        self.arrived.put(number)
        await asyncio.shield(asyncio.wrap_future(self._open))
        if number in self._fail_calls:
            raise ConnectionError(f"call {number} fails as planned")
        return types.SampleResponse(
            sequences=[self._sequence(f"{number}-{index}", tokens, sampling_params) for index in range(num_samples)]
        )

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        """The same logprob for every token but the first."""
        return [None, *[self._logprob] * (prompt.length - 1)]

    def _sequence(
        self, sequence_id: str, prompt: Sequence[int], sampling_params: types.SamplingParams
    ) -> types.SampledSequence:
        answer = list(self._answer(prompt, sampling_params))
        limit = sampling_params.max_tokens
        sampled = answer if limit is None else answer[:limit]
        return types.SampledSequence(
            stop_reason="stop" if len(sampled) == len(answer) else "length",
            sequence_id=sequence_id,
            tokens_np=np.array(sampled, dtype=np.int32),
            logprobs_np=np.full(len(sampled), self._logprob, dtype=np.float32),
        )


class KillAt:
    """Kills the process, as ``kill -9`` does, the ``occurrence``-th time (0-based) that ``point`` is reached."""

    def __init__(self, point: str, occurrence: int = 0) -> None:
        """``point`` is e.g. ``append:after:state_entered`` or ``request:before:optim_step``."""
        self._point = point
        self._left = occurrence

    def __call__(self, point: str) -> None:
        """Says that ``point`` is reached."""
        if point == self._point:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


class LedgerService:
    """A service client around another one: every request goes into a ledger file and past an observer.

    The ledger outlives a kill: a line a request, appended before the request is made, with the process id, the request
    and what identifies it. ``observer`` is called with ``request:before:<name>`` and ``request:after:<name>``.
    """

    def __init__(self, service: ServiceClient, ledger: Path, observer: Callable[[str], None]) -> None:
        """``ledger`` is made where missing."""
        self._service = service
        self._ledger = ledger
        self._observer = observer

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
            self.write(short, args, kwargs)
            reply = await request(*args, **kwargs)
            self._observer(f"request:after:{short}")
            return _LedgerClient(reply, self) if name.startswith("create_") else reply

        return call

    def write(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """One line of the ledger."""
        told = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
        prompts = [value for value in (*args, *kwargs.values()) if isinstance(value, types.ModelInput)]
        params = [value for value in (*args, *kwargs.values()) if isinstance(value, types.SamplingParams)]
        line = {
            "pid": os.getpid(),
            "request": name,
            "names": told,
            "prompt": [prompt.to_ints() for prompt in prompts],
            "seed": [param.seed for param in params],
            "temperature": [param.temperature for param in params],
        }
        with self._ledger.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


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
    """The lines of a ledger; what a kill tore is left out."""
    text = ledger.read_text() if ledger.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def outcome_of_run(log_path: Path) -> dict[str, Any]:
    """All that must be equal between a run that was killed and one that was not: no clock, process or run id in it.

    Holds the result of every state of every batch, the live checkpoints, the metric rows, and the sha256 of every
    stored file and of every live checkpoint's weights and optimizer on the embedded backend.
    """
    run = read_journal(log_path).run
    rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
    folders = ("rollouts", "datums", "local")
    files = sorted(path for folder in folders for path in (log_path / folder).rglob("*") if path.is_file())
    return {
        "position": (run.batch, run.state.value, run.finished),
        "results": {batch: dict(facts.results) for batch, facts in run.batches.items()},
        "checkpoints": [(kept.name, kept.batch, kept.checkpoint_kind, kept.state_path) for kept in run.checkpoints],
        "metrics": [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows],
        "files": {str(path.relative_to(log_path)): sha256_of(path) for path in files if path.name != "metadata.json"},
    }
