"""What the chaos command is asked for, read from its ``key=value`` words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import ConfigError
from orchestrator.settings import load_config

CADENCES = {"max_batches": "3", "eval_every": "2", "save_every": "2", "rolling_save_every": "1"}
"""A few batches with every kind of record, file and request; what is given as ``key=value`` wins."""
RECIPE = {"recipe": "hello"}
"""Where neither recipe, agent nor file is given."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A campaign as it is asked for."""

    settings: tuple[str, ...]
    """Words of the run command, without ``log_path``."""
    run_seed: int
    """Seed of the runs and of the kills."""
    added: tuple[str, ...]
    """Those of them that nobody gave, so that a campaign ends: a few batches, with every kind of record."""
    kills: int
    """Random kills, at least."""
    every_point: bool
    """Whether, before them, one run a point is killed at each point that the undisturbed run passes."""
    jobs: int
    """Runs at a time."""
    only: tuple[Literal["point", "round"], int] | None
    """The one round to play; None: all."""
    folder: Path | None
    """Where the runs go; None: a temporary folder."""


def read_wanted(arguments: Sequence[str]) -> Wanted:
    """The campaign that ``arguments`` ask for: chaos' own settings, and those of the run.

    Raises:
        ConfigError: a setting is wrong, or the run is not one of the embedded backend.
    """
    given = dict(argument.partition("=")[::2] for argument in arguments)
    own: dict[str, Any] = {name: read(given.get(name, default)) for name, (default, read) in _OWN.items()}
    defaults = CADENCES if {"config", "recipe", "agent"} & given.keys() else RECIPE | CADENCES
    settings = (
        *(f"{key}={value}" for key, value in defaults.items()),  # of the same key the last one wins
        *(argument for argument in arguments if argument.partition("=")[0] not in _OWN),
    )
    config = load_config(settings)
    if config.backend != "local":
        raise ConfigError(
            f"chaos: backend={config.backend}: runs are compared bit for bit, which only the embedded backend allows, "
            "and a service would be paid for every one. Give backend=local model_name=tiny lora_rank=0"
        )
    return Wanted(
        settings,
        config.seed,
        tuple(f"{key}={value}" for key, value in defaults.items() if key not in given),
        kills=own["kills"],
        every_point=own["every_point"],
        jobs=own["jobs"],
        only=own["only"],
        folder=own["log_path"],
    )


def _number(name: str, least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise ConfigError(f"chaos: {name}={text}: expected a whole number of at least {least}")
        return int(text)

    return read


def _flag(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ConfigError(f"chaos: every_point={text}: expected true or false")
    return text.lower() == "true"


def _round(text: str) -> tuple[str, int] | None:
    kind, _, number = text.partition("-")
    if text and (kind not in {"point", "round"} or not number.isdecimal()):
        raise ConfigError(f"chaos: only={text}: expected the name of a round, e.g. round-3 or point-17")
    return (kind, int(number)) if text else None


_OWN: dict[str, tuple[str, Callable[[str], Any]]] = {
    "kills": ("20", _number("kills", 0)),
    "every_point": ("false", _flag),
    "jobs": ("1", _number("jobs", 1)),
    "only": ("", _round),
    "log_path": ("", lambda text: Path(text) if text else None),
}
