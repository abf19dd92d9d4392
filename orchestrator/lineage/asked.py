"""What a command on a run's past is asked for: the run, the batch, and the configuration that it is looked at with."""

from collections.abc import Collection, Sequence
from pathlib import Path

from orchestrator.config import Config, Drift, field_drifts
from orchestrator.errors import ConfigError
from orchestrator.journal.past import PastRun
from orchestrator.names import State
from orchestrator.settings import change_config

BEFORE_TRAINING = frozenset(
    {
        "backend",
        "model_name",
        "lora_rank",
        "renderer_name",
        "load_checkpoint_path",
        "agent",
        "train_file",
        "val_file",
        "train_dataset",
        "val_dataset",
        "val_fraction",
        "evals",
        "shuffle",
        "batch_size",
        "group_size",
        "n_epochs",
        "max_batches",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "eval_temperature",
        "eval_top_p",
        "eval_top_k",
        "eval_group_size",
        "pass_threshold",
        "adapter",
        "max_retries",
    }
)
"""Fields that decide the rollouts, or the weights before a train step, and not what the step does with them."""


def asked_to_rebuild(log_path: Path, batch: int, settings: Sequence[str]) -> tuple[PastRun, Config]:
    """The run in ``log_path`` that has weights after ``batch`` batches, and how it is reached now.

    Raises:
        ConfigError: no run is there, it has no such batch, or a setting is wrong or is not operational.
        JournalDamagedError: its journal cannot be trusted.
    """
    past = PastRun(log_path)
    past.require_batch(batch)
    fixed = {name for name, drift in field_drifts().items() if drift is not Drift.OPERATIONAL}
    _refuse(settings, fixed)
    return past, change_config(past.run.config, settings)


def asked_to_replay(log_path: Path, batch: int, settings: Sequence[str]) -> tuple[PastRun, Config]:
    """The run in ``log_path`` that has trained ``batch``, and the settings to do so again with.

    Raises:
        ConfigError: no run is there, it has not trained the batch, or a setting is wrong or decides what came before.
        JournalDamagedError: its journal cannot be trusted.
    """
    past = PastRun(log_path)
    past.require_batch(batch)
    if past.run.result(batch, State.TRAIN_STEP) is None:
        raise ConfigError(f"--batch {batch}: {past.log_path} has not trained that batch yet; give an earlier one")
    _refuse(settings, BEFORE_TRAINING | {name for name in field_drifts() if name.startswith("local.")})
    return past, change_config(past.config_of(batch), settings)


def _refuse(settings: Sequence[str], fixed: Collection[str]) -> None:
    for setting in settings:
        if setting.partition("=")[0] in fixed:
            raise ConfigError(f"{setting}: decides what the run did before that, and is as it was; leave it out")
