"""What ``doctor`` is asked to look at: the configuration of a run that is there, or of one that could be started."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import chz

from orchestrator.config import Config, field_drifts
from orchestrator.errors import ConfigError
from orchestrator.journal.log import require_journal
from orchestrator.journal.recovery import RunState
from orchestrator.settings import load_config


def read_wanted(words: Sequence[str]) -> tuple[Config, RunState | None]:
    """From ``LOG_PATH`` and ``key=value`` words to a configuration, and to the run in LOG_PATH where one is given.

    Raises:
        ConfigError: there are two paths, no run is at the one, or a setting is none.
        JournalDamagedError: the run's journal cannot be trusted.
    """
    settings = [word for word in words if "=" in word]
    paths = [word for word in words if "=" not in word]
    if len(paths) > 1:
        raise ConfigError(f"expected one LOG_PATH and key=value words, found the paths {', '.join(paths)}")
    if not paths:
        return load_config(settings), None
    run = require_journal(Path(paths[0])).run
    return _config_of(run, paths[0], settings), run


def _config_of(run: RunState, log_path: str, settings: Sequence[str]) -> Config:
    """The configuration of the run's newest process, as far as this version knows its fields, with ``settings``."""
    given = {word.partition("=")[0] for word in settings} & field_drifts().keys()
    read = load_config(["recipe=none", f"agent={run.config['agent']}", *settings])
    journaled = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in run.config.items()
        if name in field_drifts()
    }
    chosen = {name: _value(read, name) for name in given} | {"log_path": log_path}
    return chz.Blueprint(Config).apply(journaled | chosen).make()


def _value(config: Config, name: str) -> Any:
    owner, _, attribute = name.rpartition(".")
    return getattr(config.local if owner else config, attribute)
