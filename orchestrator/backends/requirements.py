"""What is known of a backend before it is made: light to import, so that a refusal comes at once."""

from collections.abc import Mapping
from pathlib import Path

from orchestrator.config import TINY, Config
from orchestrator.errors import ConfigError

CLIPPING = frozenset({"clip_low_threshold", "clip_high_threshold"})
LOCAL_LOSS_SETTINGS: Mapping[str, frozenset[str]] = {
    "cross_entropy": frozenset(),
    "importance_sampling": frozenset(),
    "ppo": CLIPPING,
    "cispo": CLIPPING,
}
"""The losses of the embedded backend, and what can be set of each."""


def check_backend(config: Config, environ: Mapping[str, str]) -> None:
    """Looks for the key of the service, or for the model of the embedded backend.

    Raises:
        ConfigError: it is missing, or cannot be trained as configured.
    """
    if config.backend == "local":
        if not _is_local_model(config.model_name):
            raise ConfigError(
                f"model_name={config.model_name}: the embedded backend has {TINY!r} and Hugging Face model directories "
                "(a path that holds config.json); nothing is downloaded. For the service's models set TINKER_API_KEY "
                "and backend=tinker"
            )
        _check_local_reference(config)
        _check_local_loss(config)
        return
    if not environ.get("TINKER_API_KEY"):
        raise ConfigError(
            "backend=tinker: TINKER_API_KEY is not set. Set it, or use backend=local, which needs no key and no network"
        )
    if config.lora_rank == 0:
        raise ConfigError("lora_rank=0: the service trains adapters only; expected at least 1, or backend=local")


def _is_local_model(name: str) -> bool:
    return name == TINY or (Path(name) / "config.json").is_file()


def _check_local_reference(config: Config) -> None:
    base_model = config.kl_reference_config.base_model
    if base_model is not None and not _is_local_model(base_model):
        raise ConfigError(
            f"kl_reference_config.base_model={base_model}: the embedded backend has {TINY!r} and Hugging Face model "
            "directories (a path that holds config.json); nothing is downloaded"
        )


def _check_local_loss(config: Config) -> None:
    if config.loss_fn not in LOCAL_LOSS_SETTINGS:
        raise ConfigError(f"loss_fn={config.loss_fn}: the embedded backend has importance_sampling, ppo and cispo")
    allowed = LOCAL_LOSS_SETTINGS[config.loss_fn]
    given = {*(config.loss_fn_config or {}), *(name for name in CLIPPING if getattr(config, name) is not None)}
    if given - allowed:
        raise ConfigError(
            f"{', '.join(sorted(given - allowed))}: the embedded backend's {config.loss_fn} has no such setting; its "
            f"settings are: {', '.join(sorted(allowed)) or 'none'}"
        )
