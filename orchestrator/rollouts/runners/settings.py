"""What the ``runner`` command is told, read without importing what takes seconds."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError
from orchestrator.rollouts.runners.store_key import worker_key

SETTINGS = ("store_address", "agent", "adapter", "num_workers", "key_file")
ADAPTERS = ("capture", "tracer", "proxy")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What the ``runner`` command is told."""

    store_address: str
    agent: str
    key: str = field(repr=False)
    num_workers: int = 1
    traced: bool = False
    """Whether the run reads its turns in spans of the workers' tracer."""


def read_settings(arguments: Sequence[str]) -> RunnerSettings:
    """The settings that ``key=value`` arguments and the environment give.

    Raises:
        ConfigError: an argument is no setting, or one that is needed is missing.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if not separator or name not in SETTINGS:
            close = difflib.get_close_matches(name, SETTINGS, n=1)
            advice = (
                f"did you mean {close[0]}=?" if close else f"expected {', '.join(f'{known}=' for known in SETTINGS)}"
            )
            raise ConfigError(f"argument {argument!r}: {advice}")
        given[name] = value
    for name in ("store_address", "agent"):
        if not given.get(name):
            raise ConfigError(f"{name}: expected {name}=..., see `python -m orchestrator runner --help`")
    address = urlsplit(given["store_address"])
    if address.scheme not in {"http", "https"} or not address.hostname or address.path.strip("/"):
        raise ConfigError(f"store_address={given['store_address']}: expected http://HOST:PORT")
    num_workers = given.get("num_workers", "1")
    if not num_workers.isdecimal() or int(num_workers) < 1:
        raise ConfigError(f"num_workers={num_workers}: expected a whole number of at least 1")
    adapter = given.get("adapter", "capture")
    if adapter not in ADAPTERS:
        raise ConfigError(f"adapter={adapter}: expected that of the run, one of {', '.join(ADAPTERS)}")
    key = worker_key(given.get("key_file"))
    address_given = given["store_address"].rstrip("/")
    return RunnerSettings(address_given, given["agent"], key, int(num_workers), traced=adapter == "tracer")
