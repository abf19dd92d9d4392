"""The embedded backend's service client: loads models once, and makes the clients that share them."""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orchestrator.backends.local.checkpoints import Checkpoint, CheckpointStore
from orchestrator.backends.local.clients import LocalRestClient, LocalSamplingClient, LocalTrainingClient
from orchestrator.backends.local.model import AdapterSpec, LanguageModel, Policy
from orchestrator.backends.local.sampling import SampleRow, sample
from orchestrator.backends.local.status_errors import bad_request
from orchestrator.backends.local.tiny import default_cache, keep_copy, tiny_directory
from orchestrator.backends.local.training import Trainer
from orchestrator.backends.local.warm_start import WarmStart
from orchestrator.backends.local.worker import Worker
from orchestrator.config import TINY, LocalConfig
from orchestrator.disk import DISK, Disk

BASE = "base"
"""Where, under its storage, a run keeps the built-in model that its checkpoints belong to."""


class LocalServiceClient:
    """Makes the other clients. Models are loaded, or made, when first asked for, and then shared."""

    def __init__(
        self,
        storage: Path,
        *,
        options: LocalConfig,
        renderer_name: str,
        cache: Path | None = None,
        disk: Disk = DISK,
        base: Path | None = None,
    ) -> None:
        """``storage`` keeps the run's checkpoints and, once made, its built-in model: all that a later process needs.

        ``base``: where the built-in model is kept, if not there.

        ``cache`` (default: the user's) spares other runs the making of the same model. ``renderer_name`` is what the
        warm start's transcripts are rendered with. Starts the worker thread.
        """
        self._options = options
        self._renderer_name = renderer_name
        self._cache = cache or default_cache()
        self._kept_tiny = (base or storage / BASE) / TINY
        self._store = CheckpointStore(storage, disk=disk)
        self._models: dict[str, LanguageModel] = {}
        rows = options.sample_batch_size
        self._worker: Worker[SampleRow] = Worker(
            functools.partial(sample, num_rows=rows), rows=rows, num_threads=options.num_threads
        )

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
    ) -> LocalTrainingClient:
        """A fresh adapter drawn from ``seed`` (None: 0); rank 0 trains all parameters.

        Raises:
            tinker.BadRequestError: the base model is neither ``tiny`` nor a model directory.
        """
        del user_metadata  # belongs to the service's own bookkeeping of training runs
        spec = AdapterSpec(rank, train_mlp=train_mlp, train_attn=train_attn, train_unembed=train_unembed)

        def create() -> Trainer:
            model = self._model(base_model)
            return Trainer(model, spec, model.fresh_weights(spec, seed or 0))

        return LocalTrainingClient(self._worker, self._store, await self._worker.run(create))

    async def create_training_client_from_state_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> LocalTrainingClient:
        """Weights of ``path`` with a fresh optimizer.

        Raises:
            tinker.NotFoundError: there is no such checkpoint, or no longer.
            tinker.BadRequestError: it belongs to another base model.
        """
        del user_metadata
        return await self._restore(path, base_model, with_optimizer=False)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, base_model: str | None = None, user_metadata: dict[str, str] | None = None
    ) -> LocalTrainingClient:
        """Weights and optimizer of ``path``: training continues bit for bit as if it had not stopped.

        Raises:
            tinker.NotFoundError: there is no such checkpoint, or no longer.
            tinker.BadRequestError: it belongs to another base model, or was saved for sampling only.
        """
        del user_metadata
        return await self._restore(path, base_model, with_optimizer=True)

    async def create_sampling_client_async(
        self, model_path: str | None = None, base_model: str | None = None
    ) -> LocalSamplingClient:
        """A sampler of saved weights, or of the base model.

        Raises:
            tinker.NotFoundError: there is no such checkpoint, or no longer.
            tinker.BadRequestError: it belongs to another base model, or neither path nor model is given.
        """

        def create() -> Policy:
            if model_path is not None:
                model, spec, weights, _ = self._load(model_path, base_model)
                return Policy(model, spec, weights)
            if base_model is None:
                raise bad_request("create_sampling_client: expected model_path or base_model, found neither")
            return Policy(self._model(base_model), AdapterSpec(rank=0), {})

        return LocalSamplingClient(self._worker, await self._worker.run(create))

    def create_rest_client(self) -> LocalRestClient:
        """The client for existence checks and deletion."""
        return LocalRestClient(self._store)

    async def get_tokenizer_async(self, base_model: str) -> Any:
        """The tokenizer of ``base_model``, which is loaded or made for it."""
        return await self._worker.run(lambda: self._model(base_model).tokenizer)

    def close(self) -> None:
        """Stops the worker thread; what waits fails. Also happens by itself when the process ends."""
        self._worker.close()

    async def _restore(self, path: str, base_model: str | None, *, with_optimizer: bool) -> LocalTrainingClient:
        def restore() -> Trainer:
            model, spec, weights, checkpoint = self._load(path, base_model)
            trainer = Trainer(model, spec, weights)
            if with_optimizer:
                trainer.load_optimizer_state(checkpoint.optimizer_state())
            return trainer

        return LocalTrainingClient(self._worker, self._store, await self._worker.run(restore))

    def _load(
        self, path: str, base_model: str | None
    ) -> tuple[LanguageModel, AdapterSpec, dict[str, Tensor], Checkpoint]:
        checkpoint = self._store.find(path)
        metadata = checkpoint.metadata
        model = self._model(base_model or metadata.base_model)
        if metadata.base_fingerprint != model.fingerprint:
            raise bad_request(
                f"{path} was trained from {metadata.base_model} ({metadata.base_fingerprint}), "
                f"but the base model is {model.name} ({model.fingerprint}): use the model it was trained from"
            )
        return model, metadata.adapter, checkpoint.weights(), checkpoint

    def _model(self, name: str) -> LanguageModel:
        if name not in self._models:
            directory = self._tiny() if name == TINY else Path(name)
            if not (directory / "config.json").is_file():
                raise bad_request(f"base_model={name}: neither {TINY!r} nor a directory that holds config.json")
            dtype = torch.float32 if name == TINY else getattr(torch, self._options.dtype)
            try:
                self._models[name] = LanguageModel(directory, name=name, dtype=dtype)
            except (OSError, ValueError) as error:
                raise bad_request(
                    f"base_model={name}: {directory} cannot be loaded as a causal language model: {error}"
                ) from error
        return self._models[name]

    def _tiny(self) -> Path:
        if not self._kept_tiny.is_dir():
            target = self._options.warm_start
            steps = self._options.warm_start_steps
            warm_start = None if target is None else WarmStart.load(target, self._renderer_name, steps=steps)
            made = tiny_directory(self._cache, warm_start, num_threads=self._options.num_threads)
            keep_copy(made, self._kept_tiny)
        return self._kept_tiny
