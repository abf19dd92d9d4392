"""Finds the agent that a run names: any ``@agl.rollout`` function or ``LitAgent``, as ``module:attribute``."""

import importlib
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.rollouts.compat import LitAgent


def load_agent(name: str) -> LitAgent[Any]:
    """The agent called ``name``, e.g. ``my_agents:solver``; modules are also found in the current directory.

    Raises:
        ConfigError: there is no such module or attribute, importing it fails, or it is no agent.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise ConfigError(f"agent={name}: expected module:attribute, e.g. agent=my_agents:solver")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        if isinstance(found, type) and issubclass(found, LitAgent):
            found = found()
    except Exception as error:  # whatever a user's module raises on import
        raise ConfigError(f"agent={name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, LitAgent):
        raise ConfigError(
            f"agent={name}: found a {type(found).__name__}, expected an agent. Put @agl.rollout above a function "
            "`(task, llm)` that returns its reward, or subclass agentlightning.LitAgent."
        )
    return found
