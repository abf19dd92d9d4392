"""The backend that a configuration asks for, behind the surface that both share."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.errors import ConfigError

LOCAL_DIRECTORY = "local"
"""Where the embedded backend keeps its checkpoints, under the run directory."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a run trains and samples."""

    service: ServiceClient
    load_tokenizer: Callable[[], Awaitable[Any]]
    """Gives the Hugging Face tokenizer of the run's model."""


def make_backend(config: Config, log_path: Path, *, environ: Mapping[str, str] = os.environ) -> Backend:
    """The backend that ``config.backend`` names, which is not ``auto``; nothing is sent, loaded or made yet.

    Raises:
        ConfigError: the service has no key, or the embedded backend no such model.
    """
    return _local(config, log_path) if config.backend == "local" else _tinker(config, environ)


def _local(config: Config, log_path: Path) -> Backend:
    # Each backend's libraries take seconds to import, so only those of the chosen one are.
    from orchestrator.backends.local.service import LocalServiceClient
    from orchestrator.backends.local.tiny import TINY

    if config.model_name != TINY and not (Path(config.model_name) / "config.json").is_file():
        raise ConfigError(
            f"model_name={config.model_name}: the embedded backend has {TINY!r} and Hugging Face model directories "
            "(a path that holds config.json); nothing is downloaded. For the service's models set TINKER_API_KEY "
            "and backend=tinker"
        )
    service = LocalServiceClient(log_path / LOCAL_DIRECTORY, options=config.local, renderer_name=config.renderer_name)
    return Backend(service, lambda: service.get_tokenizer_async(config.model_name))


def _tinker(config: Config, environ: Mapping[str, str]) -> Backend:
    if not environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "backend=tinker: TINKER_API_KEY is not set. Set it, or use backend=local, which needs no key and no network"
        )
    if config.lora_rank == 0:
        raise ConfigError("lora_rank=0: the service trains adapters only; expected at least 1, or backend=local")
    import tinker  # seconds to import, see above
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    service: ServiceClient = tinker.ServiceClient(base_url=config.base_url)
    return Backend(service, lambda: asyncio.to_thread(get_tokenizer, config.model_name))
