"""A causal language model from a Hugging Face directory, and the policies on it: the base under one set of weights."""

import copy
import hashlib
import itertools
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from orchestrator.backends.local.status_errors import bad_request

LORA_ALPHA = 32
"""The adapter's output is scaled by this over the rank, which keeps the best learning rate the same for every rank."""
_SAMPLED_BYTES = 1 << 20

Weights = Mapping[str, Tensor]
"""Trainable tensors by parameter name, float32; empty: the base model as it is."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """Which weights are trained."""

    rank: int
    """Rank of the adapter on every chosen linear layer; 0: all parameters, whatever the flags say."""
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True


class LanguageModel:
    """The frozen base model, its tokenizer and its identity. Shared by every policy; used by the worker thread only."""

    def __init__(self, directory: Path, *, name: str, dtype: torch.dtype) -> None:
        """Loads ``directory`` without network access. Raises OSError or ValueError when it holds no causal LM."""
        transformers_logging.disable_progress_bar()  # its bars would tear the run's own output
        self.name = name
        self.dtype = dtype
        self.fingerprint = fingerprint(directory)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        try:
            self._base: nn.Module = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, local_files_only=True, use_safetensors=True
            )
        except SafetensorError as error:
            raise ValueError(f"{directory}: a weight file is damaged: {error}") from error
        self._base.eval().requires_grad_(False)
        self._adapted: dict[AdapterSpec, nn.Module] = {}
        self.config: Any = self._base.config.get_text_config()

    @property
    def vocab_size(self) -> int:
        """How many token ids the model knows."""
        return int(self.config.vocab_size)

    @property
    def context_tokens(self) -> int:
        """Most tokens of prompt and reply together."""
        return int(self.config.max_position_embeddings)

    @property
    def eos_tokens(self) -> frozenset[int]:
        """Tokens that end a reply when no stop is given."""
        configured = getattr(self._base.generation_config, "eos_token_id", None)
        listed = configured if isinstance(configured, list) else [configured]
        return frozenset(token for token in (*listed, self.tokenizer.eos_token_id) if token is not None)

    @property
    def tokens_per_pass(self) -> int:
        """Tokens of one training pass that keep its activations, and its logits, within about a gigabyte."""
        per_token = 16 * int(self.config.hidden_size) * int(self.config.num_hidden_layers)
        return max(1, min(2**28 // per_token, 2**27 // self.vocab_size, 16_384))

    def module(self, spec: AdapterSpec) -> nn.Module:
        """The base model, with the adapter of ``spec`` in place; all of them share the base parameters."""
        if spec.rank == 0:
            return self._base
        if spec not in self._adapted:
            from peft import LoraConfig, inject_adapter_in_model  # takes a second to import, and only adapters need it

            shared = {id(tensor): tensor for tensor in itertools.chain(self._base.parameters(), self._base.buffers())}
            lora = LoraConfig(r=spec.rank, lora_alpha=LORA_ALPHA, target_modules=self._target_modules(spec))
            with warnings.catch_warnings():  # of merging adapters on tied weights, which nothing here does
                warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
                self._adapted[spec] = inject_adapter_in_model(lora, copy.deepcopy(self._base, shared)).eval()
        return self._adapted[spec]

    def fresh_weights(self, spec: AdapterSpec, seed: int) -> dict[str, Tensor]:
        """What training with ``spec`` starts from: a copy of the parameters, or an adapter that changes nothing yet."""
        parameters = dict(self.module(spec).named_parameters())
        if spec.rank == 0:
            return {name: parameter.detach().to(torch.float32, copy=True) for name, parameter in parameters.items()}
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name in sorted(name for name in parameters if ".lora_" in name):
            weights[name] = torch.zeros_like(parameters[name], dtype=torch.float32, requires_grad=False)
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(weights[name], a=math.sqrt(5), generator=generator)
        return weights

    def _target_modules(self, spec: AdapterSpec) -> list[str]:
        unembedding = self._base.get_output_embeddings()  # type: ignore[operator] # a transformers model, not any module
        chosen = []
        for name, module in self._base.named_modules():
            if isinstance(module, nn.Linear):
                attention = "attn" in name or "attention" in name
                wanted = spec.train_attn if attention else spec.train_mlp
                if spec.train_unembed if module is unembedding else wanted:
                    chosen.append(name)
        if not chosen:
            raise bad_request(f"{self.name} has no linear layer to adapt with {spec}: use rank 0, all parameters")
        return chosen


@dataclass(frozen=True, eq=False)
class Policy:
    """A base model under one set of weights."""

    model: LanguageModel
    spec: AdapterSpec
    weights: Weights

    def logits(self, tokens: Tensor, **options: Any) -> Tensor:
        """Logits ``[rows, positions, vocabulary]`` of ``tokens`` ``[rows, positions]``; options are transformers'.

        Differentiable in ``weights``, which are cast to the base model's number format on the way.
        """
        output = torch.func.functional_call(self.model.module(self.spec), self._cast_weights(), (tokens,), options)
        logits: Tensor = output.logits
        return logits

    @cached_property
    def bound(self) -> nn.Module:
        """The module with these weights for its parameters, for a policy that is never written to again.

        It computes what ``logits`` does, bit for bit, without putting the weights in place at each call, which takes as
        long as a small model's decode step. What it does not train it shares with the base model.
        """
        module, weights = self.model.module(self.spec), self._cast_weights()
        kept = {id(kept): kept for kept in (*module.parameters(), *module.buffers(), module.config)}
        for name, parameter in module.named_parameters():
            if name in weights:
                kept[id(parameter)] = nn.Parameter(weights[name].detach(), requires_grad=False)
        return copy.deepcopy(module, kept)

    def _cast_weights(self) -> dict[str, Tensor]:
        cast = self.model.dtype if self.spec.rank == 0 else torch.float32
        return {name: weight.to(cast) for name, weight in self.weights.items()}

    def new_cache(self) -> DynamicCache:
        """An empty key-value cache for incremental calls of ``logits``."""
        return DynamicCache(config=self.model.config)


def fingerprint(directory: Path) -> str:
    """Identity of a model directory: its configuration, and the sizes and both ends of its weight files."""
    digest = hashlib.sha256()
    configuration = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    configuration.pop("transformers_version", None)
    digest.update(json.dumps(configuration, sort_keys=True).encode())
    for path in sorted(directory.glob("*.safetensors")):
        size_bytes = path.stat().st_size
        digest.update(f"{path.name} {size_bytes}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLED_BYTES))
            file.seek(max(0, size_bytes - _SAMPLED_BYTES))
            digest.update(file.read(_SAMPLED_BYTES))
    return digest.hexdigest()[:16]
