"""A sampling client that is not the backend's: it answers from a function, and can be held back or told to fail."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
from tinker import types

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
