"""The ``fork`` command: a new run that begins with the weights which another one has after some batch.

The batches before are shared by reference: nothing of the parent is copied but the embedded backend's built-in model,
and nothing of it is written or locked. The fork's first record names the parent; its first state makes the parent's
weights again, with their optimizer, and saves them as its own. From that checkpoint on it needs the parent no more.

A kill at any moment leaves either nothing that counts (before the first record), or a run that the same command, and
the run command too, goes on with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.config import TINY, Config, Drift, field_drifts, flatten
from orchestrator.errors import ConfigError
from orchestrator.journal.log import read_journal
from orchestrator.journal.past import PastRun
from orchestrator.journal.recovery import ForkedFrom, RunState
from orchestrator.settings import change_config

WEIGHTS = frozenset({"load_checkpoint_path", "backend", "model_name", "lora_rank", "local.warm_start", "local.dtype"})
"""What the parent's weights are of, which a fork cannot change."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork that is asked for."""

    config: Config
    """What it runs."""
    forked_from: ForkedFrom
    """As it is journaled, but for changed tasks; ``log_path`` is where the parent is now."""
    schedule_batches: int
    """The batches that the parent's learning-rate schedule was laid out for."""
    dataset: dict[str, Any]
    """The fingerprint of the parent's tasks."""

    def record(self, dataset: dict[str, Any]) -> ForkedFrom:
        """As it is journaled, where ``dataset`` is the fingerprint of the fork's tasks."""
        if dataset == self.dataset:
            return self.forked_from
        drift = {"field": "dataset", "old": self.dataset, "new": dataset}
        return replace(self.forked_from, changed=[*self.forked_from.changed, drift])

    def bring_model(self, log_path: Path) -> None:
        """Copies the built-in model that the parent's checkpoints belong to, so that the fork needs no parent later.

        Raises:
            UnrecoverableError: the parent has it no more.
        """
        # The libraries of the backend take seconds to import, which planning a fork should not wait for.
        from orchestrator.backends.local.tiny import keep_copy
        from orchestrator.backends.places import BASE_DIRECTORY
        from orchestrator.training.past import kept_base

        base = kept_base(PastRun(Path(self.forked_from.log_path)))
        if base is not None:
            keep_copy(base / TINY, log_path / BASE_DIRECTORY / TINY)


def plan_fork(parent: Path, batch: int, settings: Sequence[str]) -> Fork:
    """The fork that ``settings`` ask for, new or begun already; nothing is written.

    Raises:
        ConfigError: a setting is wrong or cannot be changed, the parent has no such batch, or ``log_path`` holds
            another run.
        JournalDamagedError: one of the two journals cannot be trusted.
    """
    given = [setting.removeprefix("log_path=") for setting in settings if setting.startswith("log_path=")]
    if not given or not given[-1]:
        raise ConfigError("log_path: expected the directory of the new run, e.g. log_path=runs/fork")
    log_path = Path(given[-1])
    begun = read_journal(log_path).run
    if begun.run_id:
        return _begun(begun, log_path, parent, batch, settings)
    past = PastRun(parent)
    past.require_batch(batch)
    config = change_config(flatten(past.config) | {"allow_drift": []}, settings)
    changed = _changes(past.config, config)
    fixed = [change["field"] for change in changed if change["field"] in WEIGHTS]
    if fixed:
        raise ConfigError(
            f"{', '.join(fixed)}: a fork begins with its parent's weights, so it cannot change what they are of. Start "
            "a new run instead; load_checkpoint_path=PATH gives it weights without their optimizer"
        )
    return Fork(config, past.fork_at(batch, changed), past.run.schedule_batches, past.run.dataset)


def _begun(run: RunState, log_path: Path, parent: Path, batch: int, settings: Sequence[str]) -> Fork:
    """The fork that ``log_path`` holds already; its parent is looked at only to see that it is this one."""
    fork = run.forked_from
    place = parent.absolute()
    same = str(place) == (None if fork is None else fork.log_path)
    there = read_journal(place).run.run_id
    if fork is None or fork.batch != batch or (there != fork.run_id if there else not same):
        whose = "is no fork" if fork is None else f"was forked at batch {fork.batch} from the run in {fork.log_path}"
        raise ConfigError(
            f"log_path={log_path}: holds run {run.run_id}, which {whose}; give another log_path to fork {parent} at "
            f"batch {batch}"
        )
    config = change_config(run.config, settings)
    return Fork(config, replace(fork, log_path=str(place)), run.schedule_batches, run.dataset)


def _changes(old: Config, new: Config) -> list[dict[str, Any]]:
    """``{"field", "old", "new"}`` for each field that differs and is part of what a run is."""
    was, found = flatten(old), flatten(new)
    names = [name for name, drift in field_drifts().items() if drift is not Drift.OPERATIONAL]
    return [{"field": name, "old": was[name], "new": found[name]} for name in names if was[name] != found[name]]
