"""The backend that a configuration asks for, behind the surface that both share."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chz

from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.errors import ConfigError

LOCAL_DIRECTORY = "local"
"""Where the embedded backend keeps its checkpoints, under the run directory."""


def make_service(config: Config, log_path: Path, *, environ: Mapping[str, str] = os.environ) -> ServiceClient:
    """The service client of ``config.backend``; nothing is sent, loaded or made yet.

    Raises:
        ConfigError: the service has no key, or the embedded backend no such model.
    """
    # Each backend's libraries take seconds to import, so only those of the chosen one are.
    if config.backend == "local":
        from orchestrator.backends.local.service import LocalServiceClient
        from orchestrator.backends.local.tiny import TINY

        if config.model_name != TINY and not (Path(config.model_name) / "config.json").is_file():
            raise ConfigError(
                f"model_name={config.model_name}: the embedded backend has {TINY!r} and Hugging Face model directories "
                "(a path that holds config.json); nothing is downloaded. For the service's models set TINKER_API_KEY "
                "and backend=tinker"
            )
        return LocalServiceClient(log_path / LOCAL_DIRECTORY, options=config.local, renderer_name=config.renderer_name)
    if config.backend == "auto":
        chosen = "tinker" if environ.get("TINKER_API_KEY") else "local"
        return make_service(chz.replace(config, backend=chosen), log_path, environ=environ)
    if not environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "backend=tinker: TINKER_API_KEY is not set. Set it, or use backend=local, which needs no key and no network"
        )
    if config.lora_rank == 0:
        raise ConfigError("lora_rank=0: the service trains adapters only; expected at least 1, or backend=local")
    import tinker

    service: ServiceClient = tinker.ServiceClient(base_url=config.base_url)
    return service


async def make_tokenizer(config: Config, service: ServiceClient) -> Any:
    """The Hugging Face tokenizer of ``config.model_name``."""
    if config.backend == "tinker":
        from tinker_cookbook.tokenizer_utils import get_tokenizer  # seconds to import, see above

        return await asyncio.to_thread(get_tokenizer, config.model_name)
    from orchestrator.backends.local.service import LocalServiceClient

    if not isinstance(service, LocalServiceClient):
        raise TypeError(f"backend={config.backend}: expected the embedded service, found {type(service).__name__}")
    return await service.get_tokenizer_async(config.model_name)
