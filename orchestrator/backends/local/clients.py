"""Training, sampling and looking after checkpoints: the SDK's clients, carried out in order by one thread."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import tinker
from tinker import types

from orchestrator.backends.local.checkpoints import MODEL_ID, Checkpoint, CheckpointStore
from orchestrator.backends.local.losses import check_clip, check_examples, check_tokens
from orchestrator.backends.local.model import Policy
from orchestrator.backends.local.sampling import Continuation, SampleRow, check_request, compute_logprobs
from orchestrator.backends.local.status_errors import bad_request
from orchestrator.backends.local.training import Trainer
from orchestrator.backends.local.worker import PendingFuture, Worker


class LocalSamplingClient:
    """Samples from one immutable set of weights."""

    def __init__(self, worker: Worker[SampleRow], policy: Policy) -> None:
        """``policy`` is never written to again."""
        self._worker = worker
        self._policy = policy
        self._sequence_ids = itertools.count()

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        """``num_samples`` continuations; each is the same for the same weights, prompt, parameters and seed.

        Raises:
            tinker.BadRequestError: the request can never be carried out.
        """
        rows = check_request(self._policy, prompt, num_samples, sampling_params)
        self._worker.submit_rows(rows)
        continuations: list[Continuation] = await asyncio.gather(*(asyncio.wrap_future(row.done) for row in rows))
        sequences = [
            types.SampledSequence(
                stop_reason=continuation.stop_reason,
                sequence_id=f"{id(self._policy):x}-{next(self._sequence_ids)}",
                _tokens_list=continuation.tokens,
                _logprobs_list=continuation.logprobs,
            )
            for continuation in continuations
        ]
        return types.SampleResponse(sequences=sequences)

    async def compute_logprobs_async(self, prompt: types.ModelInput) -> list[float | None]:
        """One entry per prompt token, the first None."""
        model = self._policy.model
        tokens = check_tokens(prompt, "prompt", vocab_size=model.vocab_size)
        if len(tokens) > model.context_tokens:
            raise bad_request(f"prompt: {len(tokens)} tokens do not fit the context of {model.context_tokens}")
        return await self._worker.run(lambda: compute_logprobs(self._policy, tokens))

    def get_tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self._policy.model.tokenizer


class LocalTrainingClient:
    """One set of weights being trained; requests are carried out in the order they are made."""

    def __init__(self, worker: Worker[SampleRow], store: CheckpointStore, trainer: Trainer) -> None:
        """``trainer`` belongs to this client alone."""
        self._worker = worker
        self._store = store
        self._trainer = trainer
        self._model = trainer.policy.model

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> PendingFuture[types.ForwardBackwardOutput]:
        """Adds the gradients of the summed token losses; gives per-datum ``logprobs`` and ``loss:sum``.

        Raises:
            tinker.BadRequestError: the loss or a datum cannot be used; nothing was added.
        """
        clip = check_clip(loss_fn, loss_fn_config)
        examples = check_examples(
            data, loss_fn, context_tokens=self._model.context_tokens, vocab_size=self._model.vocab_size
        )
        return self._submit(lambda: self._trainer.forward_backward(examples, loss_fn, clip))

    async def optim_step_async(self, adam_params: types.AdamParams) -> PendingFuture[types.OptimStepResponse]:
        """One Adam step on the gathered gradients, which are then cleared."""
        return self._submit(lambda: self._trainer.optim_step(adam_params))

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> PendingFuture[types.SaveWeightsResponse]:
        """Saves weights and optimizer; a taken name is ``tinker.ConflictError`` at the result unless ``overwrite``."""

        def save() -> types.SaveWeightsResponse:
            path = self._store.save(
                "weights",
                name,
                **self._identity(),
                weights=self._trainer.weights(),
                optimizer_state=self._trainer.optimizer_state(),
                ttl_seconds=ttl_seconds,
                overwrite=overwrite,
                user_metadata=user_metadata,
            )
            return types.SaveWeightsResponse(path=path)

        return self._submit(save)

    async def save_weights_for_sampler_async(
        self, name: str, ttl_seconds: int | None = None, user_metadata: dict[str, str] | None = None
    ) -> PendingFuture[types.SaveWeightsForSamplerResponse]:
        """Saves weights that sampling clients can load; a taken name is ``tinker.ConflictError`` at the result."""

        def save() -> types.SaveWeightsForSamplerResponse:
            path = self._store.save(
                "sampler_weights",
                name,
                **self._identity(),
                weights=self._trainer.weights(),
                ttl_seconds=ttl_seconds,
                user_metadata=user_metadata,
            )
            return types.SaveWeightsForSamplerResponse(path=path)

        return self._submit(save)

    def get_tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self._model.tokenizer

    async def get_info_async(self) -> types.GetInfoResponse:
        """Model identity; ``model_id`` is the owner part of this client's checkpoint paths."""
        rank = self._trainer.policy.spec.rank
        return types.GetInfoResponse(
            type="get_info",
            model_data=types.ModelData(
                arch=self._model.config.model_type, model_name=self._model.name, tokenizer_id=self._model.name
            ),
            model_id=MODEL_ID,
            is_lora=rank > 0,
            lora_rank=rank,
            model_name=self._model.name,
        )

    def _submit(self, request: Callable[[], Any]) -> PendingFuture[Any]:
        return PendingFuture(self._worker.submit(request))

    def _identity(self) -> dict[str, Any]:
        return {
            "base_model": self._model.name,
            "base_fingerprint": self._model.fingerprint,
            "adapter": self._trainer.policy.spec,
        }


class LocalRestClient:
    """Looks after what has been saved."""

    def __init__(self, store: CheckpointStore) -> None:
        """``store`` is the one the training clients save to."""
        self._store = store

    def get_weights_info_by_tinker_path(self, tinker_path: str) -> Awaitable[types.WeightsInfoResponse]:
        """Raises ``tinker.NotFoundError`` when the checkpoint is deleted, expired or never was."""
        return asyncio.to_thread(self._info, tinker_path)

    async def delete_checkpoint_from_tinker_path_async(self, tinker_path: str) -> None:
        """Deletes one checkpoint; one that is already gone raises ``tinker.NotFoundError``."""
        await asyncio.to_thread(self._store.delete, tinker_path)

    async def list_user_checkpoints(self, limit: int = 100, offset: int = 0) -> types.CheckpointsListResponse:
        """The live checkpoints of this store, newest first."""
        return await asyncio.to_thread(self._listed, limit, offset)

    def _listed(self, limit: int, offset: int) -> types.CheckpointsListResponse:
        saved = sorted(self._store.live(), key=lambda live: live.metadata.created_at, reverse=True)
        return types.CheckpointsListResponse(
            checkpoints=[_described(live) for live in saved[offset : offset + limit]],
            cursor=types.Cursor(offset=offset, limit=limit, total_count=len(saved)),
        )

    def _info(self, path: str) -> types.WeightsInfoResponse:
        metadata = self._store.find(path).metadata
        adapter = metadata.adapter
        return types.WeightsInfoResponse(
            base_model=metadata.base_model,
            is_lora=adapter.rank > 0,
            lora_rank=adapter.rank,
            train_unembed=adapter.train_unembed,
            train_mlp=adapter.train_mlp,
            train_attn=adapter.train_attn,
        )


def _described(live: Checkpoint) -> types.Checkpoint:
    """A checkpoint as the service lists it."""
    metadata = live.metadata
    checkpoint_id = live.path.removeprefix(f"local://{MODEL_ID}/")
    expires_at = metadata.expires_at
    return types.Checkpoint(
        checkpoint_id=checkpoint_id,
        checkpoint_type="training" if checkpoint_id.startswith("weights/") else "sampler",
        time=datetime.fromtimestamp(metadata.created_at, UTC),
        tinker_path=live.path,
        size_bytes=sum(file.stat().st_size for file in live.directory.iterdir()),
        user_metadata=dict(metadata.user_metadata),
        expires_at=None if expires_at is None else datetime.fromtimestamp(expires_at, UTC),
    )
