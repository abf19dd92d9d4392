"""Episodes of several turns through the real provider, with a model that says what the test tells it to."""

import asyncio
import atexit
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tinker import types

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.gateway.chat import read_chat
from orchestrator.rollouts.gateway.wire import MODEL
from orchestrator.rollouts.outcomes import RolloutKey, Turn
from orchestrator.rollouts.provider import Policy, Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.requests import SamplingDefaults

VERSION = 3


class ScriptedClient:
    """Samples what it was told, cut to ``max_tokens``, each token with a logprob of its own."""

    def __init__(self) -> None:
        self.next: list[Sequence[int]] = []
        """What is sampled next: as many sequences as are asked for."""
        self.prompts: list[tuple[int, ...]] = []
        self.sampled: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = []
        """Prompt, tokens and logprobs of each sequence."""
        self._num_tokens = 0

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        self.prompts.append(tuple(prompt.to_ints()))
        return types.SampleResponse(
            sequences=[self._sequence(self.next.pop(0), sampling_params.max_tokens) for _ in range(num_samples)]
        )

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        return [None] * prompt.length

    def _sequence(self, whole: Sequence[int], limit: int | None) -> types.SampledSequence:
        tokens = list(whole)[:limit]
        logprobs = -0.125 * np.arange(self._num_tokens + 1, self._num_tokens + len(tokens) + 1, dtype=np.float32)
        self._num_tokens += len(tokens)
        self.sampled.append((self.prompts[-1], tuple(tokens), tuple(logprobs.tolist())))
        return types.SampledSequence(
            stop_reason="stop" if len(tokens) == len(whole) else "length",
            sequence_id=str(len(self.prompts)),
            tokens_np=np.array(tokens, dtype=np.int32),
            logprobs_np=logprobs,
        )


class Episode:
    """One attempt at a rollout: what the agent says goes in, what it is answered comes out, as OpenAI's JSON."""

    def __init__(self, renderer_name: str, tokenizer: Any, *, member: int = 0, system: str | None = None) -> None:
        from tinker_cookbook.renderers import get_renderer  # for start-up time, as in conftest

        self.rendering = Rendering(get_renderer(renderer_name, tokenizer), tokenizer)
        self.client = ScriptedClient()
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.params: dict[str, Any] = {}
        self._capture = Capture(run_seed=7)
        self._provider = Provider(rendering=self.rendering, capture=self._capture)
        self._provider.publish(Policy(self.client, VERSION, SamplingDefaults(4096), SamplingDefaults(4096)))
        self._ids = (f"ro-{member}", "at-0")
        self._capture.register(*self._ids, RolloutKey(VERSION, "train", 0, member), 0)

    def encode(self, text: str) -> list[int]:
        """The tokens of ``text``, special tokens included, as the tokenizer cuts it."""
        return list(self.rendering.tokenizer.encode(text, add_special_tokens=False))

    @property
    def end(self) -> list[int]:
        """How the model ends a reply before the user speaks again."""
        stop = self.rendering.renderer.get_stop_sequences()[0]
        return self.encode(stop) if isinstance(stop, str) else [stop]

    def ask(self, *sampled: Sequence[int], **params: Any) -> dict[str, Any]:
        """The reply to the conversation so far, of which ``sampled`` are the samples."""
        self.client.next = list(sampled)
        asked = read_chat({"model": MODEL, "messages": json.loads(json.dumps(self.messages)), **self.params, **params})
        completion = _runner().run(self._provider.complete(*self._ids, asked.messages, asked.params))
        answer: dict[str, Any] = json.loads(bytes(asked.respond(completion).body))
        return answer

    def say(self, text: str, **extra: Any) -> None:
        """Adds a user's message."""
        self.messages.append({"role": "user", "content": text, **extra})

    def take(self, answer: dict[str, Any], *, index: int = 0, thinking: bool = False) -> dict[str, Any]:
        """Adds the answer to the conversation as clients do, with what it reasoned only where ``thinking``."""
        message = answer["choices"][index]["message"]
        kept = ["role", "content", "tool_calls", *(["reasoning_content"] if thinking else [])]
        self.messages.append({name: message[name] for name in kept if message.get(name) is not None})
        self.messages[-1].setdefault("content", None)
        return dict(message)

    def turns(self) -> tuple[Turn, ...]:
        """What was captured; the episode is over."""
        return self._capture.collect(*self._ids)


@cache
def _runner() -> asyncio.Runner:
    """One event loop for all episodes: making one takes longer than a reply."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner
