"""From ``key=value`` words, a recipe and a file to a configuration, or to the error that says which word is wrong."""

import difflib
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import chz

from orchestrator.config import DEFAULT_RECIPE, NESTED, Config, field_drifts, unflatten
from orchestrator.errors import ConfigError

RECIPES = Path(__file__).parent / "recipes"
_TYPES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    NoneType: "none",
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """One file of ``orchestrator/recipes``."""

    name: str
    description: str
    """What the run shows, in a sentence or two."""
    needs: Mapping[str, str]
    """What has to be given beside the recipe: what it is, by field."""
    values: Mapping[str, Any]
    """Configuration values under dotted names."""


def load_config(arguments: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration that ``key=value`` arguments ask for: defaults < recipe < ``config=FILE.toml`` < arguments.

    Raises:
        ConfigError: an argument is no ``key=value``, names no field (answered with a suggestion) or has a wrong type;
            the recipe or the file does not exist; a value is out of its range.
    """
    given = dict(_split(argument) for argument in arguments)
    file_path = given.pop("config", None)
    file_values = {} if file_path is None else _read_toml(Path(file_path))
    name = str(given.get("recipe", file_values.get("recipe", DEFAULT_RECIPE)))
    recipe = Recipe(name, "", {}, {}) if name.lower() == "none" else read_recipe(name)
    layers: dict[str, Mapping[str, Any]] = {
        f"recipe {name}": recipe.values,
        f"{file_path}": file_values,
        "command line": {key: chz.blueprint.Castable(value) for key, value in given.items()},
    }
    blueprint = chz.Blueprint(Config).apply({"recipe": name})
    for origin, values in layers.items():
        for key, value in values.items():
            _check_setting(origin, key, value)
        blueprint = blueprint.apply(dict(values))
    config = blueprint.make()
    if config.backend == "auto":
        config = chz.replace(config, backend="tinker" if environ.get("TINKER_API_KEY") else "local")
    _check_needs(config, recipe)
    _check(config)
    return config


def change_config(flat: Mapping[str, Any], arguments: Sequence[str]) -> Config:
    """The journaled configuration ``flat`` with the changes that ``key=value`` arguments ask for.

    Raises:
        ConfigError: as ``load_config``.
    """
    given = dict(_split(argument) for argument in arguments)
    changes = {key: chz.blueprint.Castable(value) for key, value in given.items()}
    for key, value in changes.items():
        if key in ("recipe", "config"):
            raise ConfigError(
                f"command line: {key}={given[key]}: the settings are those of the run; give single fields"
            )
        _check_setting("command line", key, value)
    config = unflatten(flat, changes)
    _check(config)
    return config


def recipe_names() -> list[str]:
    """The recipes that there are, the default one first."""
    names = sorted(path.stem for path in RECIPES.glob("*.toml"))
    return sorted(names, key=lambda name: name != DEFAULT_RECIPE)


def read_recipe(name: str) -> Recipe:
    """The recipe ``orchestrator/recipes/<name>.toml``.

    Raises:
        ConfigError: there is no such recipe; the message lists those that exist.
    """
    if name not in recipe_names():
        close = difflib.get_close_matches(name, recipe_names(), n=1)
        advice = f"did you mean {close[0]}? There" if close else "there"
        raise ConfigError(f"recipe={name}: no recipe has that name; {advice} are: {', '.join(recipe_names())}")
    values = _read_toml(RECIPES / f"{name}.toml")
    description = values.pop("description", "")
    needs = {key: values.pop(key) for key in [*values] if key.startswith("needs.")}
    return Recipe(name, description, {key.removeprefix("needs."): what for key, what in needs.items()}, values)


def _check_needs(config: Config, recipe: Recipe) -> None:
    for field, what in recipe.needs.items():
        if getattr(config, field) is None and (field != "train_file" or config.train_dataset is None):
            raise ConfigError(f"recipe={recipe.name}: {field} is not given; add {field}=..., {what}")


def _check_setting(origin: str, key: str, value: Any) -> None:
    """Every field has a default, so one setting can be tried alone, and the error is known to be its own."""
    if key not in field_drifts() and not _is_loss_setting(key):
        close = difflib.get_close_matches(key, field_drifts(), n=1)
        advice = f"did you mean {close[0]}?" if close else "`python -m orchestrator run --help` lists them"
        raise ConfigError(f"{origin}: there is no field {key}; {advice}")
    try:
        chz.Blueprint(Config).apply({key: value}).make()
    except (chz.blueprint.InvalidBlueprintArg, TypeError) as error:
        shown = value.value if isinstance(value, chz.blueprint.Castable) else repr(value)
        raise ConfigError(f"{origin}: {key}={shown}: expected {_expected(key)}") from error


def _expected(key: str) -> str:
    if _is_loss_setting(key):
        return _TYPES[float]
    owner, _, attribute = key.rpartition(".")
    return _words(get_type_hints(NESTED[owner] if owner else Config)[attribute])


def _is_loss_setting(key: str) -> bool:
    """Whether ``key`` is a setting of the loss, whose names are the loss's affair."""
    owner, _, name = key.partition(".")
    return owner == "loss_fn_config" and bool(name) and "." not in name


def _words(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (Union, UnionType):  # the first where a Literal is a part
        return " or ".join(_words(part) for part in get_args(hint))
    if get_origin(hint) is Mapping:
        return "a number for each name, e.g. loss_fn_config.beta=0.05"
    return "names separated by commas" if get_origin(hint) is tuple else _TYPES[hint]


def _split(argument: str) -> tuple[str, str]:
    key, separator, value = argument.partition("=")
    if not separator or not key:
        raise ConfigError(f"argument {argument!r}: expected key=value, e.g. log_path=runs/first")
    return key, value


def _read_toml(path: Path) -> dict[str, Any]:
    """The file's values under dotted names; TOML arrays become tuples and whole numbers may stand for fractions."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        nested = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
        flat |= {name: tuple(item) if isinstance(item, list) else item for name, item in nested.items()}
    return flat


def _check(config: Config) -> None:
    """Refuses values that could only fail later.

    Raises:
        ConfigError: naming field, value and what is expected.
    """
    if not config.agent:
        raise ConfigError("agent: expected module:attribute of an @agl.rollout function, e.g. agent=my_agents:solve")
    at_least = {
        3: ("worker_lost_seconds",),  # workers say every second that they live
        2: ("group_size",),  # rewards are compared within a group
        1: (
            "batch_size",
            "n_epochs",
            "max_batches",
            "max_tokens",
            "eval_group_size",
            "concurrency",
            "num_workers",
            "max_no_progress_batches",
            "num_epochs",
            "num_substeps",
            "max_attempts",
            "max_tokens_total",
        ),
        0: (
            "lora_rank",
            "max_retries",
            "eval_every",
            "save_every",
            "rolling_save_every",
            "learning_rate",
            "final_learning_rate",
            "temperature",
            "eval_temperature",
            "kl_penalty_coef",
            "kl_discount_factor",
            "grace_seconds",
            "gateway_port",
            "store_port",
            "ray_num_cpus",
            "span_chart_every",
        ),
    }
    for least, names in at_least.items():
        for name in names:
            value = getattr(config, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{name}={value}: expected at least {least}")
    for name in ("rollout_timeout_seconds", "backend_timeout_seconds", "state_timeout_seconds", "max_wall_seconds"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            raise ConfigError(f"{name}={value}: expected more than 0")
    if config.placement == "external" and not config.store_port:
        raise ConfigError(
            "store_port=0: placement=external needs a port of its own, e.g. store_port=4747, at which runners find the "
            "store again after a resume"
        )
    _check_ray(config)
    _check_training(config)
    address = urlsplit(config.base_url or "")
    if address.username or address.password or address.query:
        raise ConfigError(
            "base_url: expected an address without user, password or query, because it is journaled; the key belongs "
            "in TINKER_API_KEY"
        )
    _check_gateway(config)
    if not 0 <= config.val_fraction < 1:
        raise ConfigError(f"val_fraction={config.val_fraction}: expected at least 0 and less than 1")
    if config.adapter == "tracer" and config.placement not in ("processes", "external"):
        raise ConfigError(
            f"adapter=tracer: Agent-lightning has one active tracer a process, and placement={config.placement} is not "
            "made for that; add placement=processes or external, or set adapter=capture, which gives the same turns"
        )
    if config.adapter == "proxy" and config.gateway != "llm_proxy":
        raise ConfigError("adapter=proxy: only Agent-lightning's proxy leaves spans; add gateway=llm_proxy")
    unknown = set(config.allow_drift) - set(field_drifts()) - {"dataset"}
    if unknown:
        raise ConfigError(f"allow_drift={','.join(sorted(unknown))}: no such field; `dataset` allows changed tasks")


def _check_training(config: Config) -> None:
    if config.lr_schedule == "constant" and config.final_learning_rate is not None:
        raise ConfigError(
            f"final_learning_rate={config.final_learning_rate}: lr_schedule=constant never reaches it; leave one of "
            "them out, or give lr_schedule=linear or cosine"
        )
    for name, value in (config.loss_fn_config or {}).items():
        if not math.isfinite(value):
            raise ConfigError(f"loss_fn_config.{name}={value}: expected a finite number")
        if name in ("clip_low_threshold", "clip_high_threshold") and getattr(config, name) is not None:
            raise ConfigError(f"loss_fn_config.{name}={value}: {name} is its short form and is given as well; keep one")


def _check_ray(config: Config) -> None:
    if config.placement != "ray":
        return
    host, _, port = (config.ray_address or "").rpartition(":")
    if config.ray_address != "auto" and not (host and port.isdecimal() and "/" not in host):
        raise ConfigError(
            f"ray_address={str(config.ray_address).lower()}: placement=ray needs a cluster that this machine is a node "
            "of: auto finds it, HOST:PORT is its head's (`ray start --head` prints it). ray:// is for programs outside "
            "of a cluster, and nothing is started here"
        )


def _check_gateway(config: Config) -> None:
    told = urlsplit(config.gateway_address or "http://127.0.0.1")
    if told.scheme not in ("http", "https") or not told.hostname or told.path or told.query or "@" in told.netloc:
        raise ConfigError("gateway_address: expected scheme, host and port only, e.g. http://10.0.0.5:4000")
    if config.gateway_address is None and config.gateway_host in ("0.0.0.0", "::", ""):  # noqa: S104 - recognised only
        raise ConfigError(
            f"gateway_host={config.gateway_host}: nobody can call that; set gateway_address to what agents are told, "
            "e.g. http://10.0.0.5:4000 with gateway_port=4000"
        )
