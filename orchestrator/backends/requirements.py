"""What is known of a backend before it is made: light to import, so that a refusal comes at once."""

from collections.abc import Mapping
from pathlib import Path

from orchestrator.config import TINY, Config
from orchestrator.errors import ConfigError

LOCAL_DIRECTORY = "local"
"""Where the embedded backend keeps its checkpoints, under the run directory."""


def check_backend(config: Config, environ: Mapping[str, str]) -> None:
    """Looks for the key of the service, or for the model of the embedded backend.

    Raises:
        ConfigError: it is missing, or cannot be trained as configured.
    """
    if config.backend == "local":
        if config.model_name != TINY and not (Path(config.model_name) / "config.json").is_file():
            raise ConfigError(
                f"model_name={config.model_name}: the embedded backend has {TINY!r} and Hugging Face model directories "
                "(a path that holds config.json); nothing is downloaded. For the service's models set TINKER_API_KEY "
                "and backend=tinker"
            )
        return
    if not environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "backend=tinker: TINKER_API_KEY is not set. Set it, or use backend=local, which needs no key and no network"
        )
    if config.lora_rank == 0:
        raise ConfigError("lora_rank=0: the service trains adapters only; expected at least 1, or backend=local")
