"""Servers like the service that answer some requests in ways of their own: what these are, and what is done about each.

Each difference is seen in a server's replies, so nothing changes with one that does not have it: the service's own
clients are wrapped, and pass through what is as it should be. What no reply shows is only told, see ``describe``.
"""

import functools
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx
import structlog
import tinker
from tinker import types
from tinker.lib.public_interfaces import sampling_client
from tinker.types import RequestErrorCategory

from orchestrator.backends.surface import Future, SamplingClient, ServiceClient, TrainingClient

log = structlog.get_logger(__name__)

ResultT_co = TypeVar("ResultT_co", covariant=True)
ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which a server is not like the service."""

    name: str
    seen: str
    """How it shows."""
    bridged: str
    """What is done."""


NO_SEQUENCE_IDS = Difference(
    "no_sequence_ids", "samples arrive without sample_sequence_ids", "ids are made up, for nothing reads them"
)
SHORT_PROMPT_LOGPROBS = Difference(
    "short_prompt_logprobs", "there is a prompt logprob too few", "the None of the first token is put in front"
)
NO_CREATE_FROM_STATE = Difference(
    "no_create_from_state",
    "a training client that begins with a checkpoint is answered 422",
    "a fresh one of the checkpoint's base model and rank is made, and the checkpoint loaded into it",
)
BARE_SAMPLER_PATHS = Difference(
    "bare_sampler_paths", "a saved sampler has the path tinker://OWNER/NAME", "the section sampler_weights is put in"
)
BARE_FAILURES = Difference(
    "bare_failures",
    "a request that fails later is answered 400 when its result is fetched, which the SDK raises as a ValueError",
    "it is the RequestFailedError that it would be, of unknown category",
)
LATE_MISSING_SAMPLER = Difference(
    "late_missing_sampler",
    "a sampler that is gone is made all the same, and refuses its first sample",
    "where a server does not say which models it samples, one token is sampled before a sampler is relied on",
)
DIFFERENCES = (
    NO_SEQUENCE_IDS,
    SHORT_PROMPT_LOGPROBS,
    NO_CREATE_FROM_STATE,
    BARE_SAMPLER_PATHS,
    BARE_FAILURES,
    LATE_MISSING_SAMPLER,
)

UNBRIDGED = (
    "losses may be averaged over a datum's tokens and over datums where the service sums (SkyRL 0.4.0 on JAX does): "
    "the gradient's scale is another one, and a long datum weighs no more than a short one",
    "ttl_seconds and user_metadata may be ignored (SkyRL 0.4.0): checkpoints stay until they are deleted",
    "weights may live only as long as the process or session that made them (SkyRL 0.4.0: session_timeout_sec, 300 "
    "by default, after the last sign of it): a resume then saves its sampler again from the restored checkpoint",
    "a kept sampler may share its memory with the weights being trained (SkyRL 0.4.0 on JAX): sample only from the "
    "newest one, as a run does",
)
"""What no reply shows, as found where the contract suite was run."""


def describe(capabilities: types.GetServerCapabilitiesResponse) -> list[str]:
    """What a user should know of a server that says of itself no more than such servers do; nothing of the service."""
    if says_what_it_samples(capabilities):
        return []
    bridged = ", ".join(difference.name for difference in DIFFERENCES)
    return [f"it names its models and no more, as self-hosted servers do; bridged where seen: {bridged}", *UNBRIDGED]


def says_what_it_samples(capabilities: types.GetServerCapabilitiesResponse) -> bool:
    """Whether a server tells of at least one model if it can be sampled, or trained."""
    return any(model.sampleable is not None or model.trainable is not None for model in capabilities.supported_models)


def bridged(client: tinker.ServiceClient) -> ServiceClient:
    """``client`` with every difference bridged; nothing is sent."""
    accept_missing_sequence_ids()
    return _BridgedService(client)


def accept_missing_sequence_ids() -> None:
    """Has the SDK (0.26 and later) take samples whose sequences have no ids, which it asserts that they have."""
    attach = sampling_client._attach_sequence_ids  # noqa: SLF001  there is no seam for it
    if hasattr(attach, "__wrapped__"):
        return

    @functools.wraps(attach)
    def attach_or_make_up(
        response: types.SampleResponse, sample_sequence_ids: list[str] | None
    ) -> types.SampleResponse:
        made_up = [f"unnamed-{index}" for index in range(len(response.sequences))]
        return attach(response, made_up if sample_sequence_ids is None else sample_sequence_ids)

    sampling_client._attach_sequence_ids = attach_or_make_up  # noqa: SLF001


class _BridgedService:
    """The SDK's service client, whose clients are bridged too."""

    def __init__(self, client: tinker.ServiceClient) -> None:
        self._client = client
        self._tries_samplers: bool | None = None
        """Whether a sampler is tried before it is relied on; None: not known yet."""

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
    ) -> TrainingClient:
        client = await self._client.create_lora_training_client_async(
            base_model,
            rank=rank,
            seed=seed,
            train_mlp=train_mlp,
            train_attn=train_attn,
            train_unembed=train_unembed,
            user_metadata=user_metadata,
        )
        return _BridgedTrainingClient(client)

    async def create_training_client_from_state_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        create = self._client.create_training_client_from_state_async
        try:
            return _BridgedTrainingClient(await create(path, base_model, user_metadata))
        except tinker.UnprocessableEntityError:
            client = await self._fresh_for(path, base_model, user_metadata)
        await BridgedFuture(await client.load_state_async(path)).result_async()
        return _BridgedTrainingClient(client)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        create = self._client.create_training_client_from_state_with_optimizer_async
        try:
            return _BridgedTrainingClient(await create(path, base_model, user_metadata))
        except tinker.UnprocessableEntityError:
            client = await self._fresh_for(path, base_model, user_metadata)
        await BridgedFuture(await client.load_state_with_optimizer_async(path)).result_async()
        return _BridgedTrainingClient(client)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        client = _BridgedSamplingClient(await self._client.create_sampling_client_async(model_path, base_model))
        if model_path is not None and await self._must_try_samplers():
            await client.try_out(model_path)
        return client

    def create_rest_client(self) -> Any:
        return self._client.create_rest_client()

    async def _fresh_for(
        self, path: str, base_model: str | None, user_metadata: dict[str, str] | None
    ) -> tinker.TrainingClient:
        """A training client that the checkpoint at ``path`` fits. Raises NotFoundError before one is made in vain."""
        info = await self._client.create_rest_client().get_weights_info_by_tinker_path(path)
        return await self._client.create_lora_training_client_async(
            base_model or info.base_model,
            rank=info.lora_rank or 32,
            train_mlp=info.train_mlp is not False,
            train_attn=info.train_attn is not False,
            train_unembed=info.train_unembed is not False,
            user_metadata=user_metadata,
        )

    async def _must_try_samplers(self) -> bool:
        if self._tries_samplers is None:
            try:
                said = await self._client.get_server_capabilities_async()
            except tinker.APIStatusError as error:
                log.debug("the server does not say what it can do", status=error.status_code)
                self._tries_samplers = True
            else:
                self._tries_samplers = not says_what_it_samples(said)
        return self._tries_samplers


class _BridgedSamplingClient:
    """Samples and scores."""

    def __init__(self, client: tinker.SamplingClient) -> None:
        self._client = client

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        return await _with_its_cause(self._client.sample_async(prompt, num_samples, sampling_params))

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        logprobs = await _with_its_cause(self._client.compute_logprobs_async(prompt))
        return [None, *logprobs] if len(logprobs) == prompt.length - 1 else logprobs

    async def try_out(self, model_path: str) -> None:
        """Samples one token. Raises NotFoundError where the weights are gone, whatever the server says of it."""
        try:
            await self.sample_async(types.ModelInput.from_ints([0]), 1, types.SamplingParams(max_tokens=1))
        except tinker.RequestFailedError as error:
            answer = httpx.Response(404, request=httpx.Request("POST", "tinker://sampler"))
            raise tinker.NotFoundError(
                f"{model_path} cannot be sampled: {error}", response=answer, body=None
            ) from error


class _BridgedTrainingClient:
    """Trains and saves."""

    def __init__(self, client: tinker.TrainingClient) -> None:
        self._client = client

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> "BridgedFuture[types.ForwardBackwardOutput]":
        return BridgedFuture(await self._client.forward_backward_async(data, loss_fn, loss_fn_config))

    async def optim_step_async(self, adam_params: types.AdamParams, /) -> "BridgedFuture[types.OptimStepResponse]":
        return BridgedFuture(await self._client.optim_step_async(adam_params))

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> "BridgedFuture[types.SaveWeightsResponse]":
        return BridgedFuture(await self._client.save_state_async(name, ttl_seconds, overwrite, user_metadata))

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> "_SamplerFuture":
        return _SamplerFuture(await self._client.save_weights_for_sampler_async(name, ttl_seconds, user_metadata))

    def get_tokenizer(self) -> Any:
        return self._client.get_tokenizer()

    async def get_info_async(self) -> types.GetInfoResponse:
        return await self._client.get_info_async()


class BridgedFuture(Generic[ResultT_co]):
    """A request already ordered, whose failure is told as the service tells it."""

    def __init__(self, future: Future[ResultT_co]) -> None:
        """``future`` gives the reply."""
        self._future = future

    async def result_async(self, timeout: float | None = None) -> ResultT_co:
        """As ``Future``."""
        return await _with_its_cause(self._future.result_async(timeout))


class _SamplerFuture(BridgedFuture[types.SaveWeightsForSamplerResponse]):
    async def result_async(self, timeout: float | None = None) -> types.SaveWeightsForSamplerResponse:
        saved = await super().result_async(timeout)
        owner, _, rest = saved.path.removeprefix("tinker://").partition("/")
        return saved if "/" in rest else saved.model_copy(update={"path": f"tinker://{owner}/sampler_weights/{rest}"})


async def _with_its_cause(reply: Awaitable[ReplyT]) -> ReplyT:
    try:
        return await reply
    except ValueError as error:
        if not isinstance(error.__cause__, tinker.BadRequestError):
            raise
        raise tinker.RequestFailedError(str(error.__cause__), "unknown", RequestErrorCategory.Unknown) from error
