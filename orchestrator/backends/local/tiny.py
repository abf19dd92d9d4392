"""The built-in model: a hundred thousand parameters and a tokenizer of single characters, made on the spot, cached."""

import hashlib
import json
import os
import shutil
import string
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from orchestrator.backends.local.checkpoints import sync
from orchestrator.backends.local.model import LanguageModel
from orchestrator.backends.local.warm_start import WarmStart, warm_weights
from orchestrator.config import TINY

CONTEXT_TOKENS = 4096
_SEED = 0
_END, _PAD, _UNKNOWN = "<|im_end|>", "<|pad|>", "<|unknown|>"
_SPECIAL_TOKENS = (_PAD, _UNKNOWN, "<|im_start|>", _END)
_CHARACTERS = string.digits + string.ascii_letters + string.punctuation + " \n\t"
_ARCHITECTURE: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_TOKENS,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}

log = structlog.get_logger(__name__)


def default_cache() -> Path:
    """Where made models are kept: ``$XDG_CACHE_HOME/orchestrator``, or the same under ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestrator"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable ASCII character; any other character is the unknown token."""
    vocabulary = {token: index for index, token in enumerate((*_SPECIAL_TOKENS, *_CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        unk_token=_UNKNOWN,
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )


def tiny_directory(cache: Path, warm_start: WarmStart | None, *, num_threads: int) -> Path:
    """The directory of the built-in model, made when ``cache`` holds none that loads; a warm start takes seconds.

    Its name is derived from everything that decides its weights. Several processes may make it at once: each makes its
    own copy, and the first to finish gives it the name.
    """
    decided_by = {
        "architecture": dict(_ARCHITECTURE),
        "tokens": [*_SPECIAL_TOKENS, *_CHARACTERS],
        "seed": _SEED,
        "num_threads": num_threads,
        "warm_start": None if warm_start is None else warm_start.decided_by(),
        "versions": {package: version(package) for package in ("torch", "transformers", "tinker-cookbook")},
    }
    key = hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()[:16]
    directory = cache / f"{TINY}-{key}"
    if directory.is_dir():
        try:
            LanguageModel(directory, name=TINY, dtype=torch.float32)
        except (OSError, ValueError) as error:
            log.warning("built-in model is damaged, making it anew", directory=str(directory), error=str(error))
            shutil.rmtree(directory)
        else:
            return directory
    _publish(directory, lambda unfinished: _make(unfinished, warm_start))
    log.info("built-in model made", directory=str(directory), warm_start=warm_start is not None)
    return directory


def keep_copy(model: Path, directory: Path) -> None:
    """Copies a model to ``directory``, which appears at once, whole and on disk, unless it is there already."""
    _publish(directory, lambda unfinished: shutil.copytree(model, unfinished, dirs_exist_ok=True))


def _publish(directory: Path, make: Callable[[Path], object]) -> None:
    parent = directory.parent
    parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
    try:
        make(unfinished)
        for path in unfinished.iterdir():
            path.chmod(0o600)
            sync(path)
        sync(unfinished)
        unfinished.rename(directory)
    except OSError:
        if not directory.is_dir():  # else another process was faster; its model is the same
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    sync(parent)
    sync(parent.parent)


def _make(directory: Path, warm_start: WarmStart | None) -> None:
    transformers_logging.disable_progress_bar()  # its bars would tear the run's own output
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(directory)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **_ARCHITECTURE,
        )
        module = LlamaForCausalLM(config)
    module.save_pretrained(directory)
    if warm_start is not None:
        model = LanguageModel(directory, name=TINY, dtype=torch.float32)
        module.load_state_dict(warm_weights(model, warm_start), strict=False)  # tied weights are listed once
        module.save_pretrained(directory)
