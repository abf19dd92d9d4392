"""What must be there for the placement that a configuration asks for; checked before anything is spent."""

import importlib.util
import socket
from collections.abc import Callable

from orchestrator.config import Config
from orchestrator.errors import ConfigError

ANSWER_SECONDS = 5.0
"""Given to a Ray cluster's head. Ray itself would try for two minutes."""


def check_placement(config: Config, *, find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Refuses ``placement=ray`` without Ray; ``find`` gives None for a package that is not installed.

    Raises:
        ConfigError: the package is not installed, or nothing answers at ``ray_address``.
    """
    if config.placement != "ray":
        return
    if find("ray") is None:
        raise ConfigError(
            "placement=ray: the package ray is not installed. Install it with `pip install ray` (the extra "
            "orchestrator[ray] names the version that works, and the cluster must have the same), or use "
            "placement=processes"
        )
    check_answers(str(config.ray_address))


def check_answers(ray_address: str) -> None:
    """Asks whether there is anything at ``HOST:PORT``; what ``auto`` finds only Ray can tell.

    Raises:
        ConfigError: there is not.
    """
    host, _, port = ray_address.rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"ray_address={ray_address}: nothing answers there ({type(error).__name__}). Give the address of the "
            "head of a running cluster, see `ray start --head`; the same command then goes on"
        ) from error
