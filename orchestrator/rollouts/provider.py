"""The model behind the gateway: samples the published policy for what an agent asks, and captures what was sampled."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
import tinker
from tinker import types
from tinker_cookbook.renderers import Message, get_text_content

from orchestrator.backends.surface import SamplingClient
from orchestrator.errors import JournalWriteError
from orchestrator.rollouts.capture import Call, Capture
from orchestrator.rollouts.outcomes import Mode, Turn
from orchestrator.rollouts.rendering import Rendering, Reply
from orchestrator.rollouts.requests import RequestError, Sampling, SamplingDefaults, read_messages, read_sampling
from orchestrator.rollouts.tools import Tools, read_tools
from orchestrator.rollouts.turns import asked_text
from orchestrator.telling import told, trace

BAD_REQUEST = 400
NOT_FOUND = 404
FAILED = 500
UNAVAILABLE = 503
LONG_PROMPT_CHARACTERS = 100_000
"""From here on a prompt is made in a thread, so that the other agents' calls are served meanwhile."""
RETRY_HEADER = "x-stainless-retry-count"
"""In which the SDKs of OpenAI and Anthropic say how often they have made this call before, for want of a reply."""

log = structlog.get_logger(__name__)


class CallError(Exception):
    """A call that is not answered; status and message go to the agent, whose own words the message may quote."""

    def __init__(self, status: int, message: str) -> None:
        """``status`` is HTTP's."""
        super().__init__(message)
        self.status = status


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


@dataclass(frozen=True, slots=True)
class Completion:
    """What one call is answered with; each wire format has its own words for it."""

    call: Call
    replies: tuple[Reply, ...]
    reveal: bool = False
    """Whether the tokens and the policy's version are told, too."""
    decode: Callable[[list[int]], str] | None = None
    """The text of a token, where logprobs are told; None: they are not."""
    rollout_key: str | None = None
    """The ``x-rollout-key`` of the attempt; None: it is over by now."""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that were asked."""
        return len(self.call.prompt_tokens)

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens of all replies."""
        return sum(len(reply.turn.sampled_tokens) for reply in self.replies)


class Provider:
    """What every route of every gateway calls, over one published :class:`Policy`.

    A call reads the policy once, when it begins: it is sampled and stamped with that policy however long it takes,
    and publishing another neither waits for it nor aborts it. Calls are served on the event loop of the gateway's
    thread, so the sampling client is only ever used from there.
    """

    def __init__(self, *, rendering: Rendering, capture: Capture, reveal: bool = False) -> None:
        """``rendering`` must be of the served model; ``reveal`` adds each reply's tokens to it."""
        self._rendering = rendering
        self._capture = capture
        self._reveal = reveal
        self._policy: Policy | None = None
        self._in_flight: set[asyncio.Future[types.SampleResponse]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._refused = False

    @property
    def num_in_flight(self) -> int:
        """Calls that wait for their samples."""
        return len(self._in_flight)

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

    async def complete(
        self, rollout_id: str, attempt_id: str, messages: Any, params: Mapping[str, Any], *, again: bool = False
    ) -> Completion:
        """Renders, samples and captures one call; ``messages`` and ``params`` are those of a chat completion.

        ``again``: the client says that it makes this call for want of a reply to an earlier one, see ``made_again``.

        Raises:
            CallError: 404 no such attempt is under way, 400 the request cannot be served, 500 sampling failed, 503
                nothing is published or the gateway is stopping.
        """
        policy = self._policy
        if policy is None:
            raise CallError(UNAVAILABLE, "no policy is published yet")
        self._refuse_when_closed()
        key = self._capture.key_of(rollout_id, attempt_id)
        if key is None:
            raise _not_under_way(rollout_id, attempt_id)
        try:
            sampling, tools = self._read(params, policy.defaults(key.mode))
            so_far = self._capture.turns_so_far(rollout_id, attempt_id)
            prompt = await self._prompt_tokens(read_messages(messages), tools, so_far)
        except RequestError as error:
            self._tell_refusal(rollout_id)
            raise CallError(BAD_REQUEST, str(error)) from error
        call = self._capture.begin(
            rollout_id,
            attempt_id,
            prompt,
            asked=asked_text(sampling),
            policy_version=policy.policy_version,
            again=again,
        )
        if call is None:
            raise _not_under_way(rollout_id, attempt_id)
        answered = False
        try:
            # A kept turn was asked with the same prompt and stop strings: it gives the reply that it gave before.
            turns = await self._sampled(policy, sampling, call) if call.kept is None else call.kept
            replies = tuple(self._rendering.reply(turn, tools, stop=sampling.stop) for turn in turns)
            stored = self._capture.record(call, [reply.turn for reply in replies])
            if stored is None:
                raise _not_under_way(rollout_id, attempt_id)
            await _durable(stored)
            answered = True
        finally:
            if not answered:
                self._capture.abandon(call)
        decode = self._rendering.tokenizer.decode if self._reveal or sampling.logprobs else None
        rollout_key = self._capture.rollout_key_of(rollout_id, attempt_id)
        return Completion(call, replies, reveal=self._reveal, decode=decode, rollout_key=rollout_key)

    def withdraw(self, completion: Completion) -> None:
        """Forgets a reply that its agent did not get: only what the agent saw is trained."""
        self._capture.abandon(completion.call)

    def _tell_refusal(self, rollout_id: str) -> None:
        """Once as a warning: the others are likely of the same kind. The reason may quote the prompt."""
        write = log.debug if self._refused else log.warning
        self._refused = True
        write(
            "an agent's request was refused with status 400; the reply says why, and the stored line of a rollout that "
            "fails for it has the reply in its `error` and `traceback`",
            rollout_id=rollout_id,
        )

    def _read(self, params: Mapping[str, Any], defaults: SamplingDefaults) -> tuple[Sampling, Tools]:
        """How to sample, and the tools on offer."""
        sampling, tools = read_sampling(params, defaults), read_tools(params)
        if self._reveal and sampling.num_samples > 1:
            raise RequestError("n: the spans of a call hold one sample only; ask several times, or set adapter=capture")
        return sampling, tools

    async def _prompt_tokens(
        self, messages: Sequence[Message], tools: Tools, so_far: Sequence[Turn]
    ) -> tuple[int, ...]:
        if sum(len(get_text_content(message)) for message in messages) < LONG_PROMPT_CHARACTERS:
            return self._rendering.prompt_tokens(messages, tools, so_far)
        # A tokenizer takes seconds for megabytes, for most of which it leaves the interpreter to others.
        return await asyncio.to_thread(self._rendering.prompt_tokens, messages, tools, so_far)

    async def _sampled(self, policy: Policy, sampling: Sampling, call: Call) -> Sequence[Turn]:
        """One turn a sample."""
        response = await self._sample(policy, sampling, call)
        return [
            Turn(
                call.prompt_tokens,
                tuple(sequence.tokens),
                tuple(sequence.logprobs or ()),
                policy.policy_version,
                sequence.stop_reason,
            )
            for sequence in response.sequences
        ]

    async def _sample(self, policy: Policy, sampling: Sampling, call: Call) -> types.SampleResponse:
        self._loop = asyncio.get_running_loop()
        self._refuse_when_closed()  # what closed before the line above has abandoned nothing here
        prompt = types.ModelInput.from_ints(list(call.prompt_tokens))
        params = self._sampling_params(sampling, call)
        sampled = asyncio.ensure_future(policy.sampling_client.sample_async(prompt, sampling.num_samples, params))
        self._in_flight.add(sampled)
        try:
            return await sampled
        except asyncio.CancelledError:
            self._refuse_when_closed()
            raise
        except (tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
            raise CallError(BAD_REQUEST, f"the backend refused the request: {error}") from error
        except Exception as error:  # what a backend raises is its own affair; to the agent this call has failed
            log.warning("sampling failed", error=told(error))
            log.debug("sampling failed", trace=trace(error))
            raise CallError(FAILED, f"sampling failed: {type(error).__name__}: {error}") from error
        finally:
            self._in_flight.discard(sampled)

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise CallError(UNAVAILABLE, "the gateway is stopping")

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


def made_again(headers: Mapping[str, str]) -> bool:
    """Whether the client of a request with these headers, names in lower case, had no reply to this call before."""
    return headers.get(RETRY_HEADER, "0") != "0"


async def _durable(stored: "Future[None]") -> None:
    """Before this returns no reply may leave: an agent never holds a turn that the run may lose."""
    try:
        await asyncio.wrap_future(stored)
    except JournalWriteError as error:
        raise CallError(FAILED, "the turn could not be stored, so it is not answered; the run stops") from error


def _not_under_way(rollout_id: str, attempt_id: str) -> CallError:
    return CallError(
        NOT_FOUND, f"attempt {attempt_id} of rollout {rollout_id} is not under way: it is over or never began"
    )
