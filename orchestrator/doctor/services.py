"""What a run asks of its backend: a key, a session, the model with tokenizer and renderer, an optimizer restored."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tinker
from tinker import types

from orchestrator.backends.compat import describe
from orchestrator.backends.deadline import reply_within
from orchestrator.backends.service import Backend, make_backend
from orchestrator.compose import load_rendering
from orchestrator.config import Config
from orchestrator.doctor.findings import PROBE, Finding, fault, ok, warning
from orchestrator.errors import BackendError, ConfigError, OrchestratorError
from orchestrator.telling import told
from orchestrator.training.probe import probe_optimizer

NOTES: tuple[Callable[[types.GetServerCapabilitiesResponse], Sequence[str]], ...] = (describe,)
"""What is known of servers by what they say of themselves: each line becomes a warning. Entries are added here."""


def check_key(config: Config, environ: Mapping[str, str] = os.environ) -> Finding:
    """Whether there is one; it is never shown."""
    if config.backend == "local":
        return ok("key", "none is needed: backend=local")
    if not environ.get("TINKER_API_KEY"):
        return fault("key", "TINKER_API_KEY is not set", "Set it, or use backend=local")
    return ok("key", "TINKER_API_KEY is set")


async def connect(config: Config, storage: Path) -> tuple[Finding, Backend | None]:
    """The backend where it can be had; the embedded one works in ``storage``, a directory that is thrown away."""
    try:
        backend = make_backend(config, storage)
        await backend.connect()
    except OrchestratorError as error:
        return fault("backend", str(error), "Nothing else was asked of it"), None
    if config.backend == "local":
        return ok("backend", "embedded: nothing to connect to"), backend
    return ok("backend", f"{config.base_url or 'the service'} is reached and opens a session"), backend


async def check_backend(config: Config, backend: Backend) -> AsyncIterator[Finding]:
    """What it says of itself, and what a run needs of it, in that order; where there is no model nothing is probed."""
    if config.backend == "tinker":
        async for finding in _check_capabilities(config, backend):
            yield finding
    try:
        await load_rendering(config, backend)
    except (ConfigError, BackendError, tinker.TinkerError) as error:
        yield fault("model", told(error), "Nothing else was asked of the backend")
        return
    except Exception as error:  # where a tokenizer comes from raises what it likes, and the other checks are wanted
        yield fault("model", f"the tokenizer of {config.model_name} cannot be loaded ({told(error)})", "Is it there?")
        return
    yield ok("model", f"{config.model_name} has a tokenizer that {config.renderer_name} works with")
    yield await _check_optimizer(config, backend)


async def _check_capabilities(config: Config, backend: Backend) -> AsyncIterator[Finding]:
    """What the server says of itself."""
    client: Any = backend.service.create_rest_client()  # a run asks no such thing: the surface has no word for it
    request: Awaitable[types.GetServerCapabilitiesResponse] = client.get_server_capabilities()
    try:
        capabilities = await reply_within(config.backend_timeout_seconds, request, "asking for capabilities")
    except (tinker.TinkerError, BackendError) as error:
        yield warning("server", f"it does not say what it can do ({told(error)})")
        return
    names = {model.model_name: model for model in capabilities.supported_models if model.model_name}
    if config.model_name not in names:
        some = ", ".join(sorted(names)[:5]) or "none"
        yield warning("server", f"{config.model_name} is none of its {len(names)} models ({some})", "Check model_name")
    elif names[config.model_name].trainable is False:
        yield fault("server", f"{config.model_name} cannot be trained there", "Choose another model_name")
    else:
        yield ok("server", f"it serves {config.model_name}, one of {len(names)}")
    for notes in NOTES:
        for note in notes(capabilities):
            yield warning("server", note)


async def _check_optimizer(config: Config, backend: Backend) -> Finding:
    try:
        probe = await probe_optimizer(
            backend.service,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            metadata={"orchestrator_probe": "doctor"},
            timeout_seconds=config.backend_timeout_seconds,
        )
    except (tinker.TinkerError, BackendError) as error:
        return fault(PROBE, f"the probe could not be carried out ({told(error)})", "A run would meet the same")
    if probe.passed:
        return ok(PROBE, probe.told())
    return fault(
        PROBE,
        probe.told(),
        "Runs train, and a resume goes on with another optimizer than it had; report it to who runs the service",
    )
