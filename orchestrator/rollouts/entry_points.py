"""Finds the user's own Python objects, agents and datasets, by the name ``module:attribute``."""

import sys
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from orchestrator.errors import ConfigError


def load_attribute(spec: str, field: str) -> Any:
    """The object that ``spec`` names, e.g. ``my_agents:solve`` or ``my_package.agents:Solver.play``.

    The current directory is importable, as it is under ``python -m``. ``field`` is the configuration field that holds
    ``spec``; messages begin with it.

    Raises:
        ConfigError: ``spec`` is no ``module:attribute``, there is no such module, importing it fails, or the module has
            no such attribute.
    """
    where = f"{field}={spec}"
    module_name, _, path = spec.partition(":")
    names = path.split(".")
    well_formed = all(part.isidentifier() for part in (*module_name.split("."), *names))
    if not well_formed or module_name.endswith(".py"):
        raise ConfigError(f"{where}: expected module:attribute, e.g. my_agents:solve{_spelling_advice(spec)}")
    current_directory = str(Path.cwd())
    if current_directory not in sys.path:
        sys.path.insert(0, current_directory)  # the console script, unlike `python -m`, leaves it out
    found: Any = _import(module_name, where)
    owner = f"module {module_name} ({getattr(found, '__file__', None) or 'built in'})"
    for name in names:
        try:
            found = getattr(found, name)
        except AttributeError as error:
            advice = _close(name, [known for known in dir(found) if not known.startswith("_")])
            raise ConfigError(f"{where}: {owner} has no attribute {name!r}{advice}") from error
        owner = f"{module_name}:{name}"
    return found


def _import(module_name: str, where: str) -> ModuleType:
    try:
        return import_module(module_name)
    except Exception as error:  # the module is the user's code and may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            top_level = [module.name for module in iter_modules([str(Path.cwd())])]
            advice = _close(module_name, top_level) or f"; the current directory is {Path.cwd()}"
            raise ConfigError(f"{where}: there is no module {error.name!r}{advice}") from error
        raise ConfigError(
            f"{where}: importing {module_name} failed with {type(error).__name__}: {error}; "
            f"`python -c 'import {module_name}'` shows where"
        ) from error


def _spelling_advice(spec: str) -> str:
    module_name, separator, attribute = spec.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        module_name = module_name.removesuffix(".py").strip("./").replace("/", ".")
        return f"; did you mean {module_name}:{attribute or 'ATTRIBUTE'}?"
    if not separator and "." in spec:
        return f"; did you mean {':'.join(spec.rsplit('.', 1))}?"
    return ""


def _close(name: str, known: list[str]) -> str:
    matches = get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(matches)}?" if matches else ""
