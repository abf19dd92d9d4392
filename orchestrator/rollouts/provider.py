"""The model behind the gateway: renders messages, samples the published policy, captures what was sampled."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
from tinker import types
from tinker_cookbook.renderers import Renderer

from orchestrator.backends.surface import SamplingClient
from orchestrator.errors import JournalWriteError
from orchestrator.rollouts.capture import Call, Capture
from orchestrator.rollouts.compat import Choices, CustomLLM, CustomLLMError, Message, ModelResponse, Usage
from orchestrator.rollouts.outcomes import Mode, Turn
from orchestrator.rollouts.requests import RequestError, Sampling, SamplingDefaults, read_messages, read_sampling
from orchestrator.rollouts.turns import asked_text

BAD_REQUEST = 400
NOT_FOUND = 404
FAILED = 500
UNAVAILABLE = 503

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the gateway serves: weights, their version, and how to sample them. Replaced, never changed."""

    sampling_client: SamplingClient
    policy_version: int
    train: SamplingDefaults
    eval: SamplingDefaults

    def defaults(self, mode: Mode) -> SamplingDefaults:
        """How rollouts of ``mode`` are sampled where the agent does not say."""
        return self.train if mode == "train" else self.eval


class Provider(CustomLLM):  # type: ignore[misc]  # LiteLLM's classes are Any here
    """LiteLLM's custom provider over one published :class:`Policy`.

    A call reads the policy once, when it begins: it is sampled and stamped with that policy however long it takes,
    and publishing another neither waits for it nor aborts it. Calls are served on the event loop of the gateway's
    thread, so the sampling client is only ever used from there.
    """

    def __init__(self, *, renderer: Renderer, tokenizer: Any, capture: Capture) -> None:
        """``renderer`` and ``tokenizer`` must be of the served model."""
        super().__init__()
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._capture = capture
        self._policy: Policy | None = None
        self._in_flight: set[asyncio.Future[types.SampleResponse]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def publish(self, policy: Policy) -> None:
        """Serves ``policy`` to every call that begins from now on."""
        self._policy = policy

    def open(self) -> None:
        """Takes calls again after ``close``."""
        self._closed = False

    def close(self) -> None:
        """Refuses new calls and abandons those in flight, from any thread: a gateway that stops waits for none."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._abandon)

    async def acompletion(self, **kwargs: Any) -> ModelResponse:
        """One chat completion; LiteLLM's entry point.

        Raises:
            CustomLLMError: 404 no such attempt is under way, 400 the request cannot be served, 503 nothing is published
                or the gateway is stopping.
        """
        rollout_id, attempt_id = _ids(kwargs["litellm_params"])
        try:
            return await self._complete(rollout_id, attempt_id, kwargs["messages"], kwargs["optional_params"])
        except RequestError as error:
            log.warning("request refused", rollout_id=rollout_id, status=BAD_REQUEST)
            raise CustomLLMError(status_code=BAD_REQUEST, message=str(error)) from error

    async def _complete(
        self, rollout_id: str, attempt_id: str, messages: Any, params: Mapping[str, Any]
    ) -> ModelResponse:
        policy = self._policy
        if policy is None or self._closed:
            raise CustomLLMError(status_code=UNAVAILABLE, message="no policy is published")
        key = self._capture.key_of(rollout_id, attempt_id)
        if key is None:
            raise _not_under_way(rollout_id, attempt_id)
        sampling = read_sampling(params, policy.defaults(key.mode))
        prompt = self._renderer.build_generation_prompt(read_messages(messages))
        call = self._capture.begin(
            rollout_id,
            attempt_id,
            prompt.to_ints(),
            asked=asked_text(sampling),
            policy_version=policy.policy_version,
        )
        if call is None:
            raise _not_under_way(rollout_id, attempt_id)
        stored = None
        try:
            if call.kept is None:
                sequences = (await self._sample(policy, prompt, sampling, call)).sequences
                sampled: list[_Sampled] = [
                    (tuple(each.tokens), tuple(each.logprobs or ()), each.stop_reason) for each in sequences
                ]
            else:  # its prompt and stop strings are the same, so it gives the same reply as before the kill
                sampled = [(turn.sampled_tokens, turn.logprobs, turn.stop_reason) for turn in call.kept]
            replies = [self._reply(*each, sampling.stop) for each in sampled]
            turns = [
                Turn(call.prompt_tokens, reply.tokens, reply.logprobs, policy.policy_version, reply.stop_reason)
                for reply in replies
            ]
            stored = self._capture.record(call, turns)
        finally:
            if stored is None:
                self._capture.abandon(call)
        if stored is None:
            raise _not_under_way(rollout_id, attempt_id)
        await _durable(stored)
        return _completion(call, replies)

    async def _sample(
        self, policy: Policy, prompt: types.ModelInput, sampling: Sampling, call: Call
    ) -> types.SampleResponse:
        self._loop = asyncio.get_running_loop()
        params = self._sampling_params(sampling, call)
        sampled = asyncio.ensure_future(policy.sampling_client.sample_async(prompt, sampling.num_samples, params))
        self._in_flight.add(sampled)
        try:
            return await sampled
        except asyncio.CancelledError as error:
            if self._closed:
                raise CustomLLMError(status_code=UNAVAILABLE, message="the gateway is stopping") from error
            raise
        finally:
            self._in_flight.discard(sampled)

    def _abandon(self) -> None:
        for sampled in self._in_flight:
            sampled.cancel()

    def _sampling_params(self, sampling: Sampling, call: Call) -> types.SamplingParams:
        """The service takes stop strings or stop tokens, not both: beside tokens, strings are left to ``_reply``."""
        stop: list[Any] = list(self._renderer.get_stop_sequences())
        if all(isinstance(entry, str) for entry in stop):
            stop += sampling.stop
        return types.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=call.seed if sampling.seed is None else sampling.seed,
            stop=stop,
        )

    def _reply(
        self, tokens: tuple[int, ...], logprobs: tuple[float, ...], stop_reason: str, stop: Sequence[str]
    ) -> "_Reply":
        """What is kept and what is answered: up to the agent's stop string, as if sampling had ended there."""
        ending = self._first_stop(tokens, stop)
        if ending is not None:
            kept, text = ending
            return _Reply(tokens[:kept], logprobs[:kept], "stop", text)
        message, termination = self._renderer.parse_response(list(tokens))
        if not termination.is_clean or message.get("tool_calls") or message.get("unparsed_tool_calls"):
            # MALFORMED is truthy, hence is_clean. No tools were offered, so what looks like a tool call is text.
            return _Reply(tokens, logprobs, stop_reason, self._tokenizer.decode(self._without_stop(tokens)))
        content = message["content"]
        if isinstance(content, str):
            return _Reply(tokens, logprobs, stop_reason, content)
        text = "".join(part["text"] for part in content if part["type"] == "text")
        thinking = "".join(part["thinking"] for part in content if part["type"] == "thinking")
        return _Reply(tokens, logprobs, stop_reason, text, thinking or None)

    def _first_stop(self, tokens: tuple[int, ...], stop: Sequence[str]) -> tuple[int, str] | None:
        """How many tokens complete the first stop string, and the text before it; None when there is none."""
        if not stop or not _holds(self._tokenizer.decode(tokens), stop):
            return None
        low, high = 1, len(tokens)
        while low < high:
            middle = (low + high) // 2
            if _holds(self._tokenizer.decode(tokens[:middle]), stop):
                high = middle
            else:
                low = middle + 1
        text = self._tokenizer.decode(tokens[:low])
        return low, text[: min(text.find(entry) for entry in stop if entry in text)]

    def _without_stop(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[:-1] if tokens and tokens[-1] in self._renderer.get_stop_sequences() else tokens


_Sampled = tuple[tuple[int, ...], tuple[float, ...], str]
"""Tokens, logprobs and stop reason of one sequence."""


@dataclass(frozen=True, slots=True)
class _Reply:
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: str
    text: str
    thinking: str | None = None


def _completion(call: Call, replies: Sequence[_Reply]) -> ModelResponse:
    num_sampled = sum(len(reply.tokens) for reply in replies)
    num_prompt = len(call.prompt_tokens)
    return ModelResponse(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        choices=[
            Choices(
                index=index,
                finish_reason=reply.stop_reason,
                message=Message(role="assistant", content=reply.text, reasoning_content=reply.thinking),
            )
            for index, reply in enumerate(replies)
        ],
        usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_sampled, total_tokens=num_prompt + num_sampled),
    )


def _ids(litellm_params: Mapping[str, Any]) -> tuple[str, str]:
    """The rollout and attempt id that Agent-lightning's middleware took from the address."""
    request = litellm_params.get("proxy_server_request") or {}
    headers = request.get("headers") or {}
    rollout_id, attempt_id = headers.get("x-rollout-id"), headers.get("x-attempt-id")
    if not rollout_id or not attempt_id:
        raise CustomLLMError(
            status_code=NOT_FOUND, message="this address belongs to no rollout; use the `endpoint` of the agent's llm"
        )
    return rollout_id, attempt_id


async def _durable(stored: "Future[None]") -> None:
    """Before this returns no reply may leave: an agent never holds a turn that the run may lose."""
    try:
        await asyncio.wrap_future(stored)
    except JournalWriteError as error:
        raise CustomLLMError(
            status_code=FAILED, message="the turn could not be stored, so it is not answered; the run stops"
        ) from error


def _not_under_way(rollout_id: str, attempt_id: str) -> CustomLLMError:
    return CustomLLMError(
        status_code=NOT_FOUND,
        message=f"attempt {attempt_id} of rollout {rollout_id} is not under way: it is over or never began",
    )


def _holds(text: str, stop: Sequence[str]) -> bool:
    return any(entry in text for entry in stop)
