"""Single faults of every kind, made systematically in a copy of a run directory; each knows what must be blamed."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

JOURNAL, METRICS, CHECKPOINTS, CONFIG = "journal.jsonl", "metrics.jsonl", "checkpoints.jsonl", "config.json"
STATES, SAMPLERS, BASE = "local/run/weights", "local/run/sampler_weights", "local/base/tiny"
FREE = {"seq", "pid", "host", "versions", "error", "resources_id", "first_error", "resumed_from", "drift"}
FREE |= {"created_at", "reason", "result.reason", "dataset.train", "dataset.val.sha256"}
"""Fields that nothing else in the directory repeats, or that only some records can have another value of."""


@dataclass(frozen=True)
class Fault:
    """One thing done to a run directory."""

    name: str
    blamed: str
    """What the finding's path begins with, relative to the run directory."""
    inflict: Callable[[Path], None]
    """Does it to the run directory given."""


def copy_of(log_path: Path, target: Path) -> Path:
    """A copy that faults may be inflicted on: its files are links until one of them is changed."""
    shutil.copytree(log_path, target, copy_function=lambda source, copy: Path(copy).hardlink_to(source))
    return target


def rewrite(path: Path, content: bytes) -> None:
    """Gives ``path`` a new content, and no other link of the old one."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def rewriting(what: str, name: str, content: bytes) -> Fault:
    return Fault(f"{name}: {what}", name, partial(_rewrite_in, name, content))


def changes(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every value changed in turn: its path, and the fields with it."""
    for name, value in fields.items():
        path = f"{prefix}{name}"
        if name in FREE or path in FREE:
            continue
        if isinstance(value, dict):
            for inner, changed in changes(value, f"{path}."):
                yield inner, {**fields, name: changed}
        elif not (prefix == "config." and name not in {"model_name", "batch_size", "seed", "learning_rate"}):
            yield path, {**fields, name: other_value(value)}


def other_value(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"
        case None:
            return "x"
    return [value]


def delete(name: str) -> Fault:
    """A file or folder that is gone."""
    return Fault(f"{name} deleted", name, partial(_delete_in, name))


def _rewrite_in(name: str, content: bytes, run: Path) -> None:
    rewrite(run / name, content)


def _delete_in(name: str, run: Path) -> None:
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    else:
        (run / name).unlink()
