"""What must be there for the trackers and charts that a configuration asks for; checked before anything is spent."""

import importlib.util
from collections.abc import Callable

from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.reporting.trackers.wandb_run import has_credentials, is_offline


def check_trackers(config: Config, *, find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Refuses a tracker that could not take a single row, and charts that could not be drawn.

    ``find`` gives None for a package that is not installed.

    Raises:
        ConfigError: its package is not installed, or W&B does not start, or is to be online and has no key.
    """
    asked = {
        "wandb": config.wandb_project is not None and f"wandb_project={config.wandb_project}",
        "trackio": config.trackio_project is not None and f"trackio_project={config.trackio_project}",
        "tensorboard": config.tensorboard and "tensorboard=true",
        "plotly": config.span_chart_every > 0 and f"span_chart_every={config.span_chart_every}",
    }
    for package, setting in asked.items():
        if setting and find(package) is None:
            raise ConfigError(
                f"{setting}: the package {package} is not installed. Install it with `pip install {package}` (the "
                f"extra orchestrator[{package}] names the versions that work), or leave the setting out"
            )
    if asked["wandb"]:
        _check_wandb(asked["wandb"])


def _check_wandb(setting: str) -> None:
    try:
        ready = is_offline() or has_credentials()
    except Exception as error:  # a key that is none, a version that lacks a setting: W&B has exceptions for each
        raise ConfigError(
            f"{setting}: W&B does not start ({type(error).__name__}: {error}). Check WANDB_API_KEY and its other "
            "variables, and that the version is one that the extra orchestrator[wandb] names"
        ) from error
    if not ready:
        raise ConfigError(
            f"{setting}: W&B has no key. Set WANDB_API_KEY or run `wandb login`; WANDB_MODE=offline keeps the run on "
            "this machine, to be uploaded later with `wandb sync`"
        )
