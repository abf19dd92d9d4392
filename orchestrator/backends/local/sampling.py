"""Sampling in micro-batches of fixed shapes, so that a sequence's tokens and logprobs never depend on its neighbours.

After a kill, the missing rollouts are sampled again in other company than before. Kernels choose their order of
summation by shape, so every micro-batch has the same number of rows, and only prompts padded to the same length share
one: what a row is computed with depends on that row alone. Attention is the plain matrix product, because the fused CPU
kernel sums differently for the rows of different threads. Randomness is drawn per row from a seed of its own. Nothing
here looks at arrival order or at what else waits.
"""

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from orchestrator.backends.local.losses import check_tokens
from orchestrator.backends.local.model import LanguageModel, Policy
from orchestrator.backends.local.status_errors import bad_request
from orchestrator.backends.local.training import target_logprobs

PROMPT_MULTIPLE = 32
"""Prompts are padded to the next multiple of this many tokens."""
PREFILL_TOKENS = 256
"""Positions of a prompt that are read at once; bounds the attention scores, which are held whole."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """One sampled continuation."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: types.StopReason


@dataclass(frozen=True, slots=True, eq=False)
class SampleRow:
    """One continuation to sample, with everything that decides it."""

    policy: Policy
    prompt: list[int]
    max_tokens: int
    temperature: float
    """0: greedy."""
    top_k: int
    """At most this many candidates; the vocabulary's size: all."""
    top_p: float
    stop_tokens: frozenset[int]
    stop_strings: tuple[str, ...]
    seed: tuple[int, int]
    """What the row's noise is drawn from: the request's seed and the sample's index."""
    done: Future[Continuation] = field(default_factory=Future)

    @property
    def padded_tokens(self) -> int:
        """Length of the prompt with its padding."""
        return -(-len(self.prompt) // PROMPT_MULTIPLE) * PROMPT_MULTIPLE

    @property
    def key(self) -> tuple[int, int]:
        """Rows of equal key may share a micro-batch."""
        return id(self.policy), self.padded_tokens


def check_request(
    policy: Policy, prompt: tinker.ModelInput, num_samples: int, params: types.SamplingParams
) -> list[SampleRow]:
    """The rows of one request. A reply ends where the context does, even when more tokens were asked for.

    Raises:
        tinker.BadRequestError: a parameter is out of range or the prompt leaves no room for a reply.
    """
    model = policy.model
    tokens = check_tokens(prompt, "prompt", vocab_size=model.vocab_size)
    room = model.context_tokens - len(tokens)
    if room < 1:
        raise bad_request(f"prompt: {len(tokens)} tokens leave no room in the context of {model.context_tokens}")
    if num_samples < 1:
        raise bad_request(f"num_samples={num_samples}: expected at least 1")
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    if max_tokens < 1:
        raise bad_request(f"max_tokens={params.max_tokens}: expected at least 1")
    if not params.temperature >= 0 or not 0 < params.top_p <= 1 or params.top_k == 0 or params.top_k < -1:
        raise bad_request(
            f"temperature={params.temperature}, top_p={params.top_p}, top_k={params.top_k}: expected at least 0, "
            "more than 0 and at most 1, and -1 or at least 1"
        )
    stop_tokens, stop_strings = _stops(model, params.stop)
    seed = secrets.randbits(63) if params.seed is None else params.seed % 2**64
    return [
        SampleRow(
            policy=policy,
            prompt=tokens,
            max_tokens=max_tokens,
            temperature=params.temperature,
            top_k=model.vocab_size if params.top_k == -1 else min(params.top_k, model.vocab_size),
            top_p=params.top_p,
            stop_tokens=stop_tokens,
            stop_strings=stop_strings,
            seed=(seed, index),
        )
        for index in range(num_samples)
    ]


@torch.inference_mode()
@sdpa_kernel(SDPBackend.MATH)
def sample(rows: Sequence[SampleRow], gave_up: Callable[[], bool], *, num_rows: int) -> list[Continuation]:
    """The continuations of up to ``num_rows`` rows of one key, in order; cut short once ``gave_up()``.

    Logprobs are the model's own, at temperature 1 and over all tokens whatever the sampling parameters are, as the
    service gives them: they are what training compares with.
    """
    width = rows[0].padded_tokens
    horizon = max(row.max_tokens for row in rows)
    prompts = torch.zeros(num_rows, width, dtype=torch.int64)
    mask = torch.zeros(num_rows, width + horizon, dtype=torch.int64)
    for index in range(num_rows):
        prompt = rows[index].prompt if index < len(rows) else [0]
        prompts[index, width - len(prompt) :] = torch.tensor(prompt)
        mask[index, width - len(prompt) :] = 1
    reader = _Reader(rows[0].policy, mask)
    picker = _Picker(rows, num_rows)
    drafts = [_Draft(row) for row in rows]
    for start in range(0, width, PREFILL_TOKENS):
        logits = reader.read(prompts[:, start : start + PREFILL_TOKENS])
    for step in range(horizon):
        tokens = picker.pick(logits, step)[:, None]
        logprobs = target_logprobs(logits[:, None], tokens)
        for draft, token, logprob in zip(drafts, tokens[:, 0].tolist(), logprobs[:, 0].tolist(), strict=False):
            draft.extend(token, logprob)
        if all(draft.stop_reason for draft in drafts) or gave_up():
            break
        logits = reader.read(tokens)
    return [Continuation(draft.tokens, draft.logprobs, draft.stop_reason or "length") for draft in drafts]


@torch.inference_mode()
def compute_logprobs(policy: Policy, tokens: list[int]) -> list[float | None]:
    """The logprob of each token given those before it; the first has none. One sequence at a time, so always alike."""
    if len(tokens) == 1:
        return [None]
    ids = torch.tensor([tokens])
    logprobs: list[float] = target_logprobs(policy.logits(ids[:, :-1], use_cache=False), ids[:, 1:])[0].tolist()
    return [None, *logprobs]


class _Reader:
    """Runs the model over rows that grow together."""

    def __init__(self, policy: Policy, mask: Tensor) -> None:
        """``mask`` ``[rows, positions]`` is 0 where a row has padding, for all positions there will be."""
        self._module = policy.bound
        self._cache = policy.new_cache()
        self._mask = mask
        self._positions = mask.cumsum(dim=1).sub_(1).clamp_(min=0)
        self._read = 0

    def read(self, tokens: Tensor) -> Tensor:
        """Logits ``[rows, vocabulary]`` of what follows, after adding ``tokens`` ``[rows, positions]``."""
        start, self._read = self._read, self._read + tokens.shape[1]
        output = self._module(
            tokens,
            attention_mask=self._mask[:, : self._read],
            position_ids=self._positions[:, start : self._read],
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits
        return logits[:, -1].float()


class _Draft:
    """A continuation as it grows."""

    def __init__(self, row: SampleRow) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.stop_reason: types.StopReason | None = None
        self._row = row
        # A token holds at least one byte, so a stop string lies within this many tokens; the rest is for the bytes of
        # a character that the window would cut.
        self._window_tokens = max((len(stop.encode()) for stop in row.stop_strings), default=0) + 4

    def extend(self, token: int, logprob: float) -> None:
        """Adds a token unless the continuation has ended; the token that ends it belongs to it."""
        if self.stop_reason:
            return
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if token in self._row.stop_tokens or self._holds_stop_string():
            self.stop_reason = "stop"
        elif len(self.tokens) >= self._row.max_tokens:
            self.stop_reason = "length"

    def _holds_stop_string(self) -> bool:
        if not self._row.stop_strings:
            return False
        text = self._row.policy.model.tokenizer.decode(self.tokens[-self._window_tokens :], skip_special_tokens=False)
        return any(stop in text for stop in self._row.stop_strings)


class _Picker:
    """Chooses each row's next token from its logits, its parameters and its own noise."""

    def __init__(self, rows: Sequence[SampleRow], num_rows: int) -> None:
        spare = num_rows - len(rows)
        self._noise = torch.zeros(num_rows, max(row.max_tokens for row in rows), dtype=torch.float64)
        for index, row in enumerate(rows):
            generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(row.seed)))
            self._noise[index, : row.max_tokens] = torch.from_numpy(generator.random(row.max_tokens))
        temperature = torch.tensor([row.temperature for row in rows] + [0.0] * spare)
        self._greedy = temperature == 0
        self._temperature = temperature.masked_fill(self._greedy, 1.0)[:, None]
        self._top_k = torch.tensor([row.top_k for row in rows] + [1] * spare)[:, None]
        self._top_p = torch.tensor([row.top_p for row in rows] + [1.0] * spare, dtype=torch.float64)[:, None]
        self._filtered = any(row.top_p < 1 or row.top_k < row.policy.model.vocab_size for row in rows)

    def pick(self, logits: Tensor, step: int) -> Tensor:
        """Token ids ``[rows]`` for ``logits`` ``[rows, vocabulary]``, by inversion of the cumulative distribution."""
        likeliest = logits.argmax(dim=-1)
        if bool(self._greedy.all()):
            return likeliest
        scaled = logits / self._temperature
        if self._filtered:
            scaled = self._filter(scaled)
        cumulative = scaled.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
        threshold = self._noise[:, step : step + 1] * cumulative[:, -1:]
        drawn = torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
        return torch.where(self._greedy, likeliest, drawn)

    def _filter(self, scaled: Tensor) -> Tensor:
        """Keeps each row's ``top_k`` likeliest tokens and, of those, the fewest that hold ``top_p`` of the mass."""
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        ordered = ordered.masked_fill(torch.arange(scaled.shape[-1]) >= self._top_k, -torch.inf)
        mass = ordered.softmax(dim=-1, dtype=torch.float64)
        before = mass.cumsum(dim=-1) - mass
        ordered = ordered.masked_fill(before >= self._top_p, -torch.inf)
        return torch.full_like(scaled, -torch.inf).scatter_(-1, order, ordered)


def _stops(model: LanguageModel, stop: Any) -> tuple[frozenset[int], tuple[str, ...]]:
    """Stop tokens and strings. None: the model's own end; nothing listed: no stop at all; else both."""
    listed = [stop] if isinstance(stop, str) else stop
    if listed is None:
        return model.eos_tokens, ()
    if not listed:
        return frozenset(), ()
    tokens = frozenset(item for item in listed if isinstance(item, int))
    strings = tuple(item for item in listed if isinstance(item, str))
    if "" in strings:
        raise bad_request("stop: expected strings that are not empty")
    return tokens | model.eos_tokens, strings
