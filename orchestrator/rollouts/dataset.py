"""The tasks of a run: read from files or Python, split, fingerprinted, and cut into batches in a reproducible order."""

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, NoReturn, TypeAlias

from orchestrator.config import Config
from orchestrator.errors import ConfigError, DatasetError
from orchestrator.rollouts.entry_points import load_attribute
from orchestrator.telling import told

Task: TypeAlias = Any
"""One JSON value; what the agent gets."""


@dataclass(frozen=True, slots=True)
class TaskSets:
    """The training and the evaluation tasks, each in the order in which they were given."""

    train: tuple[Task, ...]
    val: tuple[Task, ...]
    """Empty when there is nothing to evaluate on, or only ``evals``."""
    evals: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)
    """Further evaluation sets by name."""

    @property
    def eval_sets(self) -> dict[str, tuple[Task, ...]]:
        """All evaluation tasks, in the order of their groups, by the area of their metrics: ``test``, ``test/NAME``."""
        sets = {"test": self.val, **{f"test/{name}": tasks for name, tasks in self.evals.items()}}
        return {area: tasks for area, tasks in sets.items() if tasks}

    def fingerprint(self) -> dict[str, Any]:
        """Rows and SHA-256 of each set, over content and order: ``{"train": {"rows", "sha256"}, "val": {...} | None}``.

        Each of ``evals`` is there as ``test/NAME``. The order of the keys of one task does not count.
        """
        evals = {f"test/{name}": _fingerprint(tasks) for name, tasks in self.evals.items()}
        return {"train": _fingerprint(self.train), "val": _fingerprint(self.val) if self.val else None, **evals}


class TaskBatches:
    """The training tasks in batches of ``batch_size``, numbered from 0 through all epochs.

    Epoch ``e``'s order is a pure function of (seed, e, number of tasks): one generator, seeded once, shuffles the tasks
    anew for each epoch. So a longer horizon never changes an earlier batch. The tasks left over at an epoch's end, too
    few for a batch, are dropped, whether shuffled or not.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        n_epochs: int = 1,
        max_batches: int | None = None,
    ) -> None:
        """``max_batches`` ends the run early; None: all epochs.

        Raises:
            DatasetError: there are fewer tasks than one batch needs.
        """
        if len(tasks) < batch_size:
            raise DatasetError(
                f"the training tasks do not fill one batch: {len(tasks)} rows, batch_size {batch_size}; "
                f"give more tasks or set batch_size={max(len(tasks), 1)}"
            )
        self._tasks = tasks
        self._batch_size = batch_size
        self._shuffle = shuffle
        self._random = Random(seed)  # noqa: S311 - an order, not a secret
        self._orders: list[list[int]] = []
        self._batches_per_epoch = len(tasks) // batch_size
        every = n_epochs * self._batches_per_epoch
        self.num_batches = every if max_batches is None else min(max_batches, every)

    def batch(self, batch: int) -> list[tuple[int, Task]]:
        """The tasks of batch ``batch`` (0-based), each with its position among the training tasks.

        Raises:
            IndexError: the run has no such batch.
        """
        if not 0 <= batch < self.num_batches:
            raise IndexError(f"batch {batch}: this run has batches 0 to {self.num_batches - 1}")
        epoch, position = divmod(batch, self._batches_per_epoch)
        start = position * self._batch_size
        return [(index, self._tasks[index]) for index in self._order(epoch)[start : start + self._batch_size]]

    def _order(self, epoch: int) -> list[int]:
        while len(self._orders) <= epoch:
            order = list(range(len(self._tasks)))
            if self._shuffle:
                self._random.shuffle(order)
            self._orders.append(order)
        return self._orders[epoch]


def load_batches(config: Config, tasks: TaskSets) -> TaskBatches:
    """The training tasks in the batches that ``config`` asks for.

    Raises:
        DatasetError: there are fewer tasks than one batch needs.
    """
    return TaskBatches(
        tasks.train,
        batch_size=config.batch_size,
        seed=config.seed,
        shuffle=config.shuffle,
        n_epochs=config.n_epochs,
        max_batches=config.max_batches,
    )


def load_tasks(config: Config) -> TaskSets:
    """The tasks that the configuration names.

    JSONL: one JSON value a line, blank lines ignored, values as JSON gives them (a quoted number stays a string).
    CSV: a header line, then one object a row whose values are all strings, exactly as written.
    Parquet: one object a row; dates and times become ISO 8601 strings, decimals become strings.
    Python: a sequence, or a function without arguments that gives one; NumPy values become plain ones.

    With no evaluation tasks given, ``val_fraction`` of the training tasks, at least one, is kept aside for evaluation:
    always the same ones for the same seed and number of tasks.

    Raises:
        ConfigError: no training tasks are named, or a set is named twice.
        DatasetError: a file cannot be read, a row is malformed, or a task is no JSON value.
    """
    train = _load_set("train", config.train_file, config.train_dataset)
    if train is None:
        raise ConfigError("there are no tasks to train on: give train_file=FILE or train_dataset=module:attribute")
    val = _load_set("val", config.val_file, config.val_dataset)
    evals = dict(_load_eval(spec) for spec in config.evals)
    if len(evals) < len(config.evals):
        raise ConfigError(f"evals={','.join(config.evals)}: expected names that differ")
    if val is not None or config.val_fraction == 0:
        return TaskSets(tuple(train), tuple(val or ()), evals)
    num_val = min(max(1, round(len(train) * config.val_fraction)), len(train))
    # A generator of its own: the split must not follow from the order of the first epoch.
    aside = set(Random(f"val split {config.seed}").sample(range(len(train)), num_val))  # noqa: S311
    return TaskSets(
        tuple(task for index, task in enumerate(train) if index not in aside),
        tuple(task for index, task in enumerate(train) if index in aside),
        evals,
    )


def _load_set(name: str, file: str | None, dataset: str | None) -> list[Task] | None:
    if file is not None and dataset is not None:
        raise ConfigError(f"{name}_file={file} and {name}_dataset={dataset}: expected one of them, not both")
    if file is not None:
        return _read_file(Path(file), f"{name}_file")
    if dataset is not None:
        return _call_dataset(dataset, f"{name}_dataset")
    return None


def _load_eval(spec: str) -> tuple[str, tuple[Task, ...]]:
    """Name and tasks of one of ``config.evals``: ``NAME=FILE`` or ``NAME=module:attribute``."""
    name, _, source = spec.partition("=")
    where = f"evals={name}"
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or not source:
        raise ConfigError(
            f"evals={spec}: expected NAME=FILE or NAME=module:attribute, with letters, digits, _ and - in NAME; "
            "e.g. evals=hard=hard.jsonl,long=my_tasks:LONG"
        )
    tasks = _call_dataset(source, where) if ":" in source else _read_file(Path(source), where)
    if not tasks:
        raise DatasetError(f"{where}={source}: there are no tasks in it")
    return name, tuple(tasks)


def _read_file(path: Path, field: str) -> list[Task]:
    readers = {".jsonl": _jsonl_rows, ".csv": _csv_rows, ".parquet": _parquet_rows}
    read = readers.get(path.suffix.lower())
    if read is None:
        raise DatasetError(f"{field}={path}: unknown format {path.suffix!r}; expected {', '.join(readers)}")
    try:
        return [_json_value(row, where) for where, row in read(path)]
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"{field}={path}: cannot be read: {error}") from error


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Task]]:
    with path.open(encoding="utf-8-sig") as lines:  # spreadsheet programs begin files with a byte order mark
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield f"{path}, line {number}", json.loads(line, parse_constant=_refuse_constant)
                except ValueError as error:
                    raise DatasetError(f"{path}, line {number}: expected one JSON value: {error}") from error


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is no JSON value")


def _csv_rows(path: Path) -> Iterator[tuple[str, Task]]:
    with path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines, strict=True)
        try:
            header = next(rows, [])
            if len(set(header)) != len(header) or not all(header):
                raise DatasetError(f"{path}, line 1: expected distinct, non-empty column names, found {header}")
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DatasetError(
                        f"{path}, line {rows.line_num}: {len(row)} values for {len(header)} columns; "
                        'quote values that hold commas: "a,b"'
                    )
                yield f"{path}, line {rows.line_num}", dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise DatasetError(f"{path}, line {rows.line_num}: malformed CSV: {error}") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Task]]:
    import pyarrow as pa  # here for start-up time: only parquet files need it
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid as error:
        raise DatasetError(f"{path}: cannot be read as parquet: {error}") from error
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows))


def _call_dataset(spec: str, field: str) -> list[Task]:
    found = load_attribute(spec, field)
    is_function = callable(found) and not hasattr(found, "__len__")
    try:
        if is_function:
            found = found()
        tasks = None if isinstance(found, str | bytes | Mapping) else [found[index] for index in range(len(found))]
    except Exception as error:  # functions and sequences are the user's code and may raise anything
        module_name, _, attribute = spec.partition(":")
        program = f"import {module_name} as m; list(m.{attribute}{'()' if is_function else ''})"
        raise DatasetError(
            f"{field}={spec}: reading it failed with {told(error)}; `python -c '{program}'` shows its message"
        ) from error
    if tasks is None:
        raise DatasetError(
            f"{field}={spec}: expected a sequence of tasks, or a function giving one, found a {type(found).__name__}"
        )
    return [_json_value(task, f"{field}={spec}, task {index}") for index, task in enumerate(tasks)]


def _json_value(value: Any, where: str) -> Task:
    """``value`` in JSON's own types.

    Raises:
        DatasetError: there is no faithful JSON value for it.
    """
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [_json_value(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json_value(item, f"{where}, {key!r}") for key, item in value.items()}
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays, without importing NumPy
        return _json_value(value.tolist(), where)
    raise DatasetError(f"{where}: expected JSON values only, found {_found(value)}")


def _found(value: Any) -> str:
    """What ``value`` is; of a task no more than that may be told."""
    return repr(value) if isinstance(value, float) else f"a {type(value).__name__}"


def _fingerprint(tasks: Sequence[Task]) -> dict[str, Any]:
    digest = sha256()
    for task in tasks:
        digest.update(json.dumps(task, sort_keys=True, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    return {"rows": len(tasks), "sha256": digest.hexdigest()}
