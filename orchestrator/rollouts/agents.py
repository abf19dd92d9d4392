"""Finds the agent that a run names: any ``@agl.rollout`` function or ``LitAgent``, as ``module:attribute``."""

from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.rollouts.compat import LitAgent
from orchestrator.rollouts.entry_points import load_attribute


def load_agent(name: str) -> LitAgent[Any]:
    """The agent called ``name``, e.g. ``my_agents:solver``; modules are also found in the current directory.

    Raises:
        ConfigError: there is no such module or attribute, importing it fails, or it is no agent.
    """
    found = load_attribute(name, "agent")
    if isinstance(found, type) and issubclass(found, LitAgent):
        try:
            found = found()
        except Exception as error:  # the constructor is the user's code and may raise anything
            raise ConfigError(f"agent={name}: making it failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, LitAgent):
        raise ConfigError(
            f"agent={name}: found a {type(found).__name__}, expected an agent. Put @agl.rollout above a function "
            "`(task, llm)` that returns its reward, or subclass agentlightning.LitAgent."
        )
    return found
