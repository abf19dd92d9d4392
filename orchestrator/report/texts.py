"""What tokens spell: the tokenizer of a run's model, from this machine's files and never from the network."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.config import TINY

TOKENIZER_NAME = "tokenizer.json"


class Texts:
    """Spells the tokens of one model, special ones included."""

    def __init__(self, path: Path) -> None:
        """Reads ``path``, a ``tokenizer.json``. Raises ValueError: it is none."""
        from tokenizers import Tokenizer  # start-up time: only who shows texts needs it

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library has no class of its own for what it cannot read
            raise ValueError(f"{path}: no tokenizer can be read there ({type(error).__name__})") from error

    def of(self, tokens: Sequence[int]) -> str:
        """The text of ``tokens``; one that the model does not know is left out."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def find_texts(log_path: Path, model_name: str) -> Texts:
    """The tokenizer of ``model_name``: kept in the run directory, in the model's directory, or in the hub's cache.

    Raises:
        ValueError: none is there; it says where it was looked for.
    """
    places = [log_path / LOCAL_DIRECTORY / "base" / TINY] if model_name == TINY else [Path(model_name)]
    for place in places:
        if (place / TOKENIZER_NAME).is_file():
            return Texts(place / TOKENIZER_NAME)
    cached = None if model_name == TINY else _cached(model_name)
    if cached is not None:
        return Texts(cached)
    searched = " and ".join(f"in {place / TOKENIZER_NAME}" for place in places)
    raise ValueError(
        f"the tokenizer of {model_name} is neither {searched} nor in the cache of Hugging Face's hub on this machine. "
        "Make the report where the run was made, or load the tokenizer once"
    )


def _cached(model_name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache  # start-up time
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model_name, TOKENIZER_NAME)
    except HFValidationError:  # a path, or a name of another service's
        return None
    return Path(found) if isinstance(found, str) else None
