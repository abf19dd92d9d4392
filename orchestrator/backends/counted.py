"""A service client around another one: every request that it and its clients make is counted in the usage file.

A request is counted before it is made and once more when its reply is here. What the SDK repeats by itself behind one
request is counted once.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import tinker
from tinker import types

from orchestrator.backends.surface import Future, RestClient, SamplingClient, ServiceClient, TrainingClient
from orchestrator.backends.usage import Event, Request, UsageLog

ReplyT = TypeVar("ReplyT")
ResultT_co = TypeVar("ResultT_co", covariant=True)


class CountedService:
    """Makes counted clients; making a client is a request too."""

    def __init__(self, service: ServiceClient, usage: UsageLog) -> None:
        """``service`` does the work."""
        self._service = service
        self._usage = usage

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
    ) -> "CountedTrainingClient":
        """As ``ServiceClient``."""
        request = self._usage.asked("create_lora_training_client")
        made = self._service.create_lora_training_client_async(
            base_model,
            rank=rank,
            seed=seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
            user_metadata=user_metadata,
        )
        return CountedTrainingClient(await _reply(request, made), self._usage)

    async def create_training_client_from_state_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> "CountedTrainingClient":
        """As ``ServiceClient``."""
        request = self._usage.asked("create_training_client_from_state")
        made = self._service.create_training_client_from_state_async(path, base_model, user_metadata)
        return CountedTrainingClient(await _reply(request, made), self._usage)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> "CountedTrainingClient":
        """As ``ServiceClient``."""
        request = self._usage.asked("create_training_client_from_state_with_optimizer")
        made = self._service.create_training_client_from_state_with_optimizer_async(path, base_model, user_metadata)
        return CountedTrainingClient(await _reply(request, made), self._usage)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> "CountedSamplingClient":
        """As ``ServiceClient``."""
        request = self._usage.asked("create_sampling_client")
        made = self._service.create_sampling_client_async(model_path=model_path, base_model=base_model)
        return CountedSamplingClient(await _reply(request, made), self._usage)

    def create_rest_client(self) -> "CountedRestClient":
        """As ``ServiceClient``; nothing is sent."""
        return CountedRestClient(self._service.create_rest_client(), self._usage)


class CountedSamplingClient:
    """Samples and scores, counted."""

    def __init__(self, client: SamplingClient, usage: UsageLog) -> None:
        """``client`` does the work."""
        self._client = client
        self._usage = usage

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        """As ``SamplingClient``; the prompt is counted once, however many samples are asked for."""
        request = self._usage.asked("sample", prompt_tokens=prompt.length)
        return await _reply(request, self._client.sample_async(prompt, num_samples, sampling_params), _sampled_tokens)

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        """As ``SamplingClient``."""
        request = self._usage.asked("compute_logprobs", prompt_tokens=prompt.length)
        return await _reply(request, self._client.compute_logprobs_async(prompt))


class CountedTrainingClient:
    """Trains and saves, counted; a request is answered once its result is here."""

    def __init__(self, client: TrainingClient, usage: UsageLog) -> None:
        """``client`` does the work."""
        self._client = client
        self._usage = usage

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> "CountedFuture[types.ForwardBackwardOutput]":
        """As ``TrainingClient``."""
        request = self._usage.asked("forward_backward", trained_tokens=_input_tokens(data))
        return await _ordered(request, self._client.forward_backward_async(data, loss_fn, loss_fn_config))

    async def optim_step_async(self, adam_params: types.AdamParams) -> "CountedFuture[types.OptimStepResponse]":
        """As ``TrainingClient``."""
        return await _ordered(self._usage.asked("optim_step"), self._client.optim_step_async(adam_params))

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> "CountedFuture[types.SaveWeightsResponse]":
        """As ``TrainingClient``."""
        request = self._usage.asked("save_state", name=name)
        return await _ordered(request, self._client.save_state_async(name, ttl_seconds, overwrite, user_metadata))

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> "CountedFuture[types.SaveWeightsForSamplerResponse]":
        """As ``TrainingClient``."""
        request = self._usage.asked("save_weights_for_sampler", name=name)
        return await _ordered(request, self._client.save_weights_for_sampler_async(name, ttl_seconds, user_metadata))

    def get_tokenizer(self) -> Any:
        """As ``TrainingClient``; not counted."""
        return self._client.get_tokenizer()

    async def get_info_async(self) -> types.GetInfoResponse:
        """As ``TrainingClient``."""
        return await _reply(self._usage.asked("get_info"), self._client.get_info_async())


class CountedFuture(Generic[ResultT_co]):
    """A request that is ordered already; its reply is counted when it is waited for."""

    def __init__(self, future: Future[ResultT_co], request: Request) -> None:
        """``future`` gives the reply."""
        self._future = future
        self._request = request

    async def result_async(self, timeout: float | None = None) -> ResultT_co:
        """As ``Future``; to be called once."""
        return await _reply(self._request, self._future.result_async(timeout))


class CountedRestClient:
    """Looks after what has been saved, counted."""

    def __init__(self, client: RestClient, usage: UsageLog) -> None:
        """``client`` does the work."""
        self._client = client
        self._usage = usage

    async def get_weights_info_by_tinker_path(self, tinker_path: str) -> types.WeightsInfoResponse:
        """As ``RestClient``."""
        request = self._usage.asked("get_weights_info_by_tinker_path")
        return await _reply(request, self._client.get_weights_info_by_tinker_path(tinker_path))

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """As ``RestClient``."""
        request = self._usage.asked("delete_checkpoint_from_tinker_path")
        await _reply(request, self._client.delete_checkpoint_from_tinker_path_async(tinker_path))

    async def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> types.CheckpointsListResponse:
        """As ``RestClient``."""
        request = self._usage.asked("list_user_checkpoints")
        return await _reply(request, self._client.list_user_checkpoints(limit, offset))


async def _ordered(request: Request, ordering: Awaitable[Future[ReplyT]]) -> CountedFuture[ReplyT]:
    return CountedFuture(await _counted(request, ordering), request)


async def _reply(
    request: Request, reply: Awaitable[ReplyT], sampled_tokens: Callable[[ReplyT], int] = lambda _reply: 0
) -> ReplyT:
    arrived = await _counted(request, reply)
    request.answered(sampled_tokens=sampled_tokens(arrived))
    return arrived


async def _counted(request: Request, reply: Awaitable[ReplyT]) -> ReplyT:
    """The reply; a refusal is counted. Any other error, or a cancelled wait, leaves open what the backend did."""
    try:
        return await reply
    except tinker.ConflictError:
        request.ended(Event.FOUND)
        raise
    except (tinker.APIStatusError, tinker.RequestFailedError):
        request.ended(Event.REFUSED)
        raise


def _sampled_tokens(response: types.SampleResponse) -> int:
    return sum(len(sequence.tokens) for sequence in response.sequences)


def _input_tokens(data: Sequence[tinker.Datum]) -> int:
    return sum(datum.model_input.length for datum in data)
