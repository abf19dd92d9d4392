"""Makes small model directories of random weights, as a user's own model directory would look."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from orchestrator.backends.local.tiny import make_tokenizer

SHAPE: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def make_llama(directory: Path, *, seed: int = 0) -> Path:
    """A Llama whose unembedding is a matrix of its own."""
    return _make(LlamaForCausalLM, LlamaConfig, directory, seed, tie_word_embeddings=False)


def make_qwen3(directory: Path, *, seed: int = 0) -> Path:
    """A Qwen3 whose unembedding is its embedding."""
    return _make(Qwen3ForCausalLM, Qwen3Config, directory, seed, tie_word_embeddings=True, head_dim=16)


def _make(model_class: Any, config_class: Any, directory: Path, seed: int, **options: Any) -> Path:
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = config_class(
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **SHAPE,
            **options,
        )
        model_class(config).save_pretrained(directory)
    return directory
