"""What a resume may not change unasked: the configuration, the tasks, and how often the same state has failed."""

from collections.abc import Mapping
from typing import Any

from orchestrator.config import Config, Drift, field_drifts, flatten
from orchestrator.errors import DriftError, TooManyAttemptsError
from orchestrator.journal.recovery import RunState

ORIGIN = "load_checkpoint_path"
"""Where the weights came from when the run began, which no resume can change."""
FIRST_WEIGHTS = frozenset(
    {ORIGIN, "backend", "model_name", "lora_rank", "seed", "local.warm_start", "local.num_threads", "local.dtype"}
)
"""What decides the weights that a run begins with. Until these are journaled they may be saved already, under a name
that does not say of which configuration they are."""
DATASET = "dataset"
"""The name under which ``allow_drift`` accepts changed tasks."""


def check_drift(run: RunState, config: Config, dataset: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compares what this process would run with what the run's newest process ran, which holds all accepted drift.

    Identity fields and the dataset fingerprint must be equal, horizon fields may grow, operational fields are free.

    Returns:
        What differs and ``config.allow_drift`` accepts, as ``{"field", "old", "new"}``, to be journaled.

    Raises:
        DriftError: something else differs; it names every such field, old and new, before anything is spent.
    """
    new = flatten(config)
    # A journal of an older version lacks the fields that are newer; each one's default is what that version did.
    began = flatten(Config()) | run.config
    compared = [
        (name, began[name], new[name])
        for name, drift in field_drifts().items()
        if drift is Drift.IDENTITY or (drift is Drift.HORIZON and not _grows(began[name], new[name]))
    ]
    compared.append((DATASET, run.dataset, dict(dataset)))
    drifts = [{"field": name, "old": was, "new": found} for name, was, found in compared if was != found]
    fixed = {ORIGIN} if run.batches else FIRST_WEIGHTS
    refused = [drift for drift in drifts if drift["field"] not in set(config.allow_drift) - fixed]
    if refused:
        differences = "; ".join(_words(drift) for drift in refused)
        fields = ",".join(drift["field"] for drift in refused)
        acceptable = not fixed & {drift["field"] for drift in refused}
        accept = f", or accept with allow_drift={fields}" if acceptable else ""
        raise DriftError(
            f"log_path={config.log_path}: run {run.run_id}, at {run.state} of batch {run.batch}, was started "
            f"otherwise: {differences}. Use the old values, or give another log_path{accept}"
        )
    return drifts


def check_attempts(run: RunState, config: Config) -> None:
    """Stops a loop of failures; a kill is not one, since people kill on purpose.

    Raises:
        TooManyAttemptsError: the current batch and state failed ``max_attempts`` times; it tells the last error.
    """
    if run.failures < config.max_attempts:
        return
    last_error = run.last_stop.error if run.last_stop else None
    raise TooManyAttemptsError(
        f"log_path={config.log_path}: {run.state} of batch {run.batch} failed {run.failures} times, "
        f"max_attempts={config.max_attempts}; the last error was: {last_error or 'not recorded'}. "
        f"Remove its cause, then resume with max_attempts={run.failures + 1} or more"
    )


def _grows(old: int | None, new: int | None) -> bool:
    """Whether a horizon stays or grows; None is the farthest, all there is."""
    return new is None or (old is not None and new >= old)


def _words(drift: Mapping[str, Any]) -> str:
    if drift["field"] != DATASET:
        return f"{drift['field']} was {drift['old']!r} and is {drift['new']!r}"
    return f"the dataset fingerprint was {_fingerprint(drift['old'])} and is {_fingerprint(drift['new'])}"


def _fingerprint(dataset: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{split}: {part['rows']} rows sha256 {part['sha256'][:12]}" if part else f"{split}: none"
        for split, part in dataset.items()
    )
