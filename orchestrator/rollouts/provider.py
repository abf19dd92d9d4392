"""The model behind the gateway: samples the published policy for what an agent asks, and captures what was sampled."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from tinker import types

from orchestrator.backends.surface import SamplingClient
from orchestrator.rollouts.capture import Call, Capture
from orchestrator.rollouts.compat import Choices, CustomLLM, CustomLLMError, Message, ModelResponse, Usage
from orchestrator.rollouts.outcomes import Mode, Turn
from orchestrator.rollouts.rendering import Rendering, Reply
from orchestrator.rollouts.requests import RequestError, Sampling, SamplingDefaults, read_messages, read_sampling
from orchestrator.rollouts.tools import read_tools

BAD_REQUEST = 400
NOT_FOUND = 404
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

    def __init__(self, *, rendering: Rendering, capture: Capture) -> None:
        """``rendering`` must be of the served model."""
        super().__init__()
        self._rendering = rendering
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
        tools = read_tools(params)
        so_far = self._capture.turns_so_far(rollout_id, attempt_id)
        prompt = self._rendering.prompt_tokens(read_messages(messages), tools, so_far)
        call = self._capture.begin(rollout_id, attempt_id, prompt)
        if call is None:
            raise _not_under_way(rollout_id, attempt_id)
        recorded = False
        try:
            response = await self._sample(policy, sampling, call)
            replies = [
                self._rendering.reply(
                    Turn(
                        call.prompt_tokens,
                        tuple(sequence.tokens),
                        tuple(sequence.logprobs or ()),
                        policy.policy_version,
                        sequence.stop_reason,
                    ),
                    tools,
                    stop=sampling.stop,
                )
                for sequence in response.sequences
            ]
            # Recorded before the reply leaves: an agent never holds a turn that the run does not.
            recorded = self._capture.record(call, [reply.turn for reply in replies])
        finally:
            if not recorded:
                self._capture.abandon(call)
        if not recorded:
            raise _not_under_way(rollout_id, attempt_id)
        return _completion(call, replies)

    async def _sample(self, policy: Policy, sampling: Sampling, call: Call) -> types.SampleResponse:
        self._loop = asyncio.get_running_loop()
        prompt = types.ModelInput.from_ints(list(call.prompt_tokens))
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
        return types.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=call.seed if sampling.seed is None else sampling.seed,
            stop=self._rendering.stop_sequences(sampling.stop),
        )


def _completion(call: Call, replies: Sequence[Reply]) -> ModelResponse:
    num_sampled = sum(len(reply.turn.sampled_tokens) for reply in replies)
    num_prompt = len(call.prompt_tokens)
    return ModelResponse(
        id=f"chatcmpl-{uuid.uuid4().hex}",
        choices=[
            Choices(
                index=index,
                finish_reason=reply.finish_reason,
                message=_message(reply),
            )
            for index, reply in enumerate(replies)
        ],
        usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_sampled, total_tokens=num_prompt + num_sampled),
    )


def _message(reply: Reply) -> Message:
    calls = [{"id": call.id, "type": "function", "function": call.function.model_dump()} for call in reply.tool_calls]
    return Message(
        role="assistant",
        content=None if calls and not reply.text else reply.text,
        reasoning_content=reply.thinking,
        tool_calls=calls or None,
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


def _not_under_way(rollout_id: str, attempt_id: str) -> CustomLLMError:
    return CustomLLMError(
        status_code=NOT_FOUND,
        message=f"attempt {attempt_id} of rollout {rollout_id} is not under way: it is over or never began",
    )
