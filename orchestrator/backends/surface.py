"""What this project uses of the ``tinker`` SDK (0.38), as protocols that every backend's clients satisfy.

The request and response types are the SDK's own (``tinker.types``). The SDK's clients satisfy these protocols as they
are; ``orchestrator.backends.local`` implements the same surface in process.
"""

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import tinker
from tinker import types

ResultT_co = TypeVar("ResultT_co", covariant=True)


class Future(Protocol[ResultT_co]):
    """A request already ordered behind the ones before it; ``result_async`` waits for its reply."""

    async def result_async(self, timeout: float | None = None) -> ResultT_co:
        """The reply; ``timeout`` in seconds, None waits for ever. Raises TimeoutError."""
        ...


class SamplingClient(Protocol):
    """Samples from one immutable set of weights."""

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        """``num_samples`` continuations with one logprob per sampled token."""
        ...

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        """One entry per prompt token, the first None."""
        ...


class TrainingClient(Protocol):
    """One set of weights being trained; requests are carried out in the order they are made."""

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> Future[types.ForwardBackwardOutput]:
        """Adds the gradients of the summed token losses; returns per-datum ``logprobs``."""
        ...

    async def optim_step_async(self, adam_params: types.AdamParams, /) -> Future[types.OptimStepResponse]:
        """One Adam step on the gathered gradients, which are then cleared."""
        ...

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[types.SaveWeightsResponse]:
        """Saves weights and optimizer under ``name``; a taken name is a conflict (HTTP 409) unless ``overwrite``."""
        ...

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> Future[types.SaveWeightsForSamplerResponse]:
        """Saves weights that sampling clients can load.

        The SDK orders it when its own thread gets to it, not here: wait for the result before asking for more.
        """
        ...

    def get_tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        ...

    async def get_info_async(self) -> types.GetInfoResponse:
        """Model identity; ``model_id`` is the owner part of this client's checkpoint paths."""
        ...


class RestClient(Protocol):
    """Looks after what has been saved."""

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Awaitable[types.WeightsInfoResponse]:
        """Raises ``tinker.NotFoundError`` when the checkpoint is deleted, expired or never was."""
        ...

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Deletes one checkpoint; one that is already gone raises ``tinker.NotFoundError``."""
        ...

    def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> Awaitable[types.CheckpointsListResponse]:
        """What is saved, of every run and with its ``user_metadata``, newest first; at most ``limit`` of them."""
        ...


class ServiceClient(Protocol):
    """Makes the other clients."""

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
        """Fresh adapter of ``rank`` on ``base_model`` (the embedded backend: rank 0 trains all parameters)."""
        ...

    async def create_training_client_from_state_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """Weights of ``path`` with a fresh optimizer."""
        ...

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> TrainingClient:
        """Weights and optimizer of ``path``."""
        ...

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> SamplingClient:
        """A sampler of saved weights, or of the base model."""
        ...

    def create_rest_client(self) -> RestClient:
        """The client for existence checks and deletion."""
        ...
