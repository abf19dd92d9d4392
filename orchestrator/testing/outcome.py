"""What a run comes to, told so that a killed run and an undisturbed one can be compared."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.journal.durable import sha256_of
from orchestrator.journal.log import read_journal


def outcome_of_run(log_path: Path) -> dict[str, Any]:
    """All that must be equal between a run that was killed and one that was not: no clock, process or run id in it.

    Holds the result of every state of every batch, the live checkpoints, the metric rows, and the sha256 of every
    stored file and of every live checkpoint's weights and optimizer on the embedded backend.
    """
    run = read_journal(log_path).run
    rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
    folders = ("rollouts", "datums", "local")
    files = sorted(path for folder in folders for path in (log_path / folder).rglob("*") if path.is_file())
    return {
        "position": (run.batch, run.state.value, run.finished),
        "results": {batch: dict(facts.results) for batch, facts in run.batches.items()},
        "checkpoints": [(kept.name, kept.batch, kept.checkpoint_kind, kept.state_path) for kept in run.checkpoints],
        "metrics": [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows],
        "files": {str(path.relative_to(log_path)): sha256_of(path) for path in files if path.name != "metadata.json"},
    }


def first_difference(expected: Any, found: Any, where: str = "") -> str | None:
    """The first place, e.g. ``.metrics[2].optim/kl``, where two outcomes differ, and what stands there; None: none."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in [*expected, *(key for key in found if key not in expected)]:
            if key not in found or key not in expected:
                return f"{where}.{key} is {'missing' if key not in found else 'not expected'}"
            if (difference := first_difference(expected[key], found[key], f"{where}.{key}")) is not None:
                return difference
        return None
    if _is_list(expected) and _is_list(found) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        differences = (first_difference(one, other, f"{where}[{index}]") for index, (one, other) in pairs)
        return next((difference for difference in differences if difference is not None), None)
    return None if expected == found else f"{where} is {found!r}, expected {expected!r}"


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
