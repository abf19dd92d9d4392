"""The backend that a configuration asks for, behind the surface that both share."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.backends.requirements import check_backend
from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.disk import DISK, Disk


async def _embedded() -> None:
    """An embedded backend has nothing to connect to."""


@dataclass(frozen=True, slots=True)
class Backend:
    """Where a run trains and samples."""

    service: ServiceClient
    load_tokenizer: Callable[[], Awaitable[Any]]
    """Gives the Hugging Face tokenizer of the run's model."""
    connect: Callable[[], Awaitable[None]] = _embedded
    """To be awaited before anything is asked of ``service``. Raises ConfigError or BackendError."""


def make_backend(
    config: Config,
    log_path: Path,
    disk: Disk = DISK,
    *,
    environ: Mapping[str, str] = os.environ,
    base: Path | None = None,
) -> Backend:
    """The backend that ``config.backend`` names, which is not ``auto``; nothing is sent, loaded or made yet.

    ``base``: where another run directory keeps the embedded backend's built-in model; None: this one does.

    Raises:
        ConfigError: the service has no key, or the embedded backend no such model.
    """
    check_backend(config, environ)
    # Each backend's libraries take seconds to import, so only those of the chosen one are.
    if config.backend == "local":
        from orchestrator.backends.local.service import LocalServiceClient

        local = LocalServiceClient(
            log_path / LOCAL_DIRECTORY, options=config.local, renderer_name=config.renderer_name, disk=disk, base=base
        )
        return Backend(local, lambda: local.get_tokenizer_async(config.model_name))
    import tinker
    from tinker_cookbook.tokenizer_utils import get_tokenizer

    from orchestrator.backends.compat import bridged
    from orchestrator.backends.hosted import connect
    from orchestrator.backends.retries import tell_retries

    tell_retries()
    client = tinker.ServiceClient(base_url=config.base_url, display_name=config.session_name or config.wandb_name)
    return Backend(
        bridged(client), lambda: asyncio.to_thread(get_tokenizer, config.model_name), lambda: connect(config, client)
    )
