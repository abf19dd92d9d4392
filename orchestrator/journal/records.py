"""The records of the journal: their kinds, the fields each kind must have, and the one line a record is stored as."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any
from zlib import crc32

import orjson

from orchestrator.names import State

FORMAT_VERSION = 1


class Kind(StrEnum):
    """What a record says has happened."""

    RUN_STARTED = "run_started"
    """The run exists: always the first record, and only that."""
    PROCESS_STARTED = "process_started"
    """A process has taken up the run, after its configuration and dataset were checked against it."""
    STATE_ENTERED = "state_entered"
    """The body of a state is about to begin."""
    TRANSITION = "transition"
    """The body of a state has ended, with this result, and the machine is now in ``dest``."""
    CHECKPOINT_SAVED = "checkpoint_saved"
    """A checkpoint with the optimizer is complete and may be relied on."""
    CHECKPOINT_LOST = "checkpoint_lost"
    """A checkpoint was deleted, has expired or cannot be found, and is not to be relied on any more."""
    OPTIMIZER_PROBED = "optimizer_probed"
    """It was tried whether the backend gives an optimizer back with the weights."""
    CLIENT_LOST = "client_lost"
    """The training client could not be relied on any more; the process enters the state again and makes a new one."""
    PROCESS_STOPPED = "process_stopped"
    """A process has ended and could say why; a killed one leaves no such record."""
    RUN_FINISHED = "run_finished"
    """All batches are trained and the final weights evaluated."""


class InvalidRecordError(ValueError):
    """A line is not a record, or a record cannot be written as a line."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened; never changed once written."""

    seq: int
    """0-based position in the journal."""
    at: str
    """When, as ``2026-11-30T11:02:03.123456Z``."""
    kind: Kind
    fields: Mapping[str, Any]
    """Those that ``FIELDS`` lists for the kind, all of them, and any of those in ``OPTIONAL``."""


@dataclass(frozen=True, slots=True)
class FieldType:
    """What a field may hold."""

    meaning: str
    accepts: Callable[[Any], bool]


def _one_of(*choices: str) -> FieldType:
    return FieldType(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def _or_null(inner: FieldType) -> FieldType:
    return FieldType(f"{inner.meaning}, or null", lambda value: value is None or inner.accepts(value))


_COUNT = FieldType("a whole number of at least 0", lambda value: type(value) is int and value >= 0)
_SECONDS = FieldType("a number of seconds", lambda value: type(value) in {int, float} and value >= 0)
_NUMBER = FieldType("a number of at least 0", lambda value: type(value) in {int, float} and value >= 0)
_BOOLEAN = FieldType("true or false", lambda value: type(value) is bool)
_TEXT = FieldType("a text", lambda value: isinstance(value, str))
_OBJECT = FieldType("an object", lambda value: isinstance(value, dict))
_LIST = FieldType("a list", lambda value: isinstance(value, list))
_STATE = _one_of(*State)


def _is_fork(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != _FORK_FIELDS.keys():
        return False
    return all(field_type.accepts(value[name]) for name, field_type in _FORK_FIELDS.items())


_FORK_FIELDS = {
    "log_path": _TEXT,  # of the parent, absolute
    "run_id": _TEXT,
    "batch": _COUNT,  # the parent's weights after so many batches are what this run begins with
    "seq": _COUNT,  # of the parent's last record that decides these weights
    "sha256": _TEXT,  # of the parent's journal up to and with that record
    "changed": _LIST,  # [{"field", "old", "new"}]: identity fields and the dataset, against the parent's
}
FORKED_FROM = FieldType(f"an object of {', '.join(_FORK_FIELDS)}", _is_fork)

FIELDS: Mapping[Kind, Mapping[str, FieldType]] = {
    Kind.RUN_STARTED: {
        "run_id": _TEXT,
        "config": _OBJECT,  # flat, as orchestrator.config.flatten gives it
        "dataset": _OBJECT,  # {"train": {"rows": int, "sha256": str}, "val": the same or null, "test/NAME": ...}
        "num_batches": _COUNT,
        "schedule_batches": _COUNT,  # the batches that the learning-rate schedule was laid out for
        "versions": _OBJECT,  # package -> version
    },
    Kind.PROCESS_STARTED: {
        "pid": _COUNT,
        "host": _TEXT,
        "resumed_from": _or_null(_OBJECT),  # {"batch", "state"}; null in a new run
        "attempt": _COUNT,  # earlier processes of this run
        "config": _OBJECT,  # flat, as this process runs
        "drift": _LIST,  # [{"field", "old", "new"}] that allow_drift accepted
        "num_batches": _COUNT,
    },
    Kind.STATE_ENTERED: {
        "batch": _COUNT,
        "state": _STATE,
        "attempt": _COUNT,
    },  # earlier entries of this batch and state
    Kind.TRANSITION: {
        "batch": _COUNT,
        "source": _STATE,
        "dest": _STATE,
        "attempt": _COUNT,
        "seconds": _SECONDS,
        "result": _OBJECT,
    },
    Kind.CHECKPOINT_SAVED: {
        "batch": _COUNT,  # batches trained in it, and so the batch that a restore continues with
        "name": _TEXT,
        "checkpoint_kind": _one_of("initial", "periodic", "rolling", "final"),
        "state_path": _TEXT,
        "sampler_path": _or_null(_TEXT),
        "expires_at": _or_null(_TEXT),
    },
    Kind.CHECKPOINT_LOST: {"batch": _COUNT, "name": _TEXT, "state_path": _TEXT, "reason": _TEXT},
    Kind.OPTIMIZER_PROBED: {
        "passed": _BOOLEAN,
        "restored_difference": _NUMBER,  # between logprobs: of a client that went on and one restored with optimizer
        "fresh_difference": _NUMBER,  # of one restored with and one restored without
    },
    Kind.CLIENT_LOST: {"batch": _COUNT, "state": _STATE, "reason": _TEXT},
    Kind.PROCESS_STOPPED: {
        "reason": _one_of("interrupted", "failed", "refused", "finished", "budget"),
        "batch": _COUNT,
        "state": _STATE,
        "error": _or_null(_TEXT),
    },
    Kind.RUN_FINISHED: {"batches": _COUNT},
}

OPTIONAL: Mapping[Kind, Mapping[str, FieldType]] = {
    Kind.RUN_STARTED: {"forked_from": FORKED_FROM},
}
"""Fields that a record may lack: an older version did not write them, or there is nothing to say."""

_PLAIN = frozenset({str, int, bool, type(None)})
_KINDS = {kind.value: kind for kind in Kind}
_HEAD = [("v", int), ("seq", int), ("at", str), ("kind", str)]
_CRC_SUFFIX = re.compile(rb',"crc":"([0-9a-f]{8})"}')
_CRC_SUFFIX_BYTES = len(b',"crc":"00000000"}')


def encode(record: Record) -> bytes:
    """The record's line, with its newline: strict JSON, ``v, seq, at, kind``, the kind's own fields, ``crc``.

    ``crc`` is the CRC-32, as 8 hexadecimal digits, of exactly the line's bytes before ``,"crc":`` followed by ``}``:
    the record without its crc, as compact UTF-8 JSON with its keys in the order of the line.

    Raises:
        InvalidRecordError: a field is missing, unknown or of the wrong type, or holds what JSON does not know (NaN and
            infinity included).
    """
    _check_fields(record.kind, record.fields)
    _check_json(dict(record.fields), str(record.kind))
    entry = {"v": FORMAT_VERSION, "seq": record.seq, "at": record.at, "kind": record.kind, **record.fields}
    try:
        body = orjson.dumps(entry)
    except TypeError as error:  # a number beyond 64 bits, or half of a surrogate pair
        raise InvalidRecordError(f"{record.kind}: cannot be written as JSON: {error}") from error
    return body[:-1] + b',"crc":"%08x"}\n' % crc32(body)


def decode(line: bytes) -> Record:
    """The record that ``encode`` made ``line`` from; the newline may be left out.

    Raises:
        InvalidRecordError: it says what is wrong; nothing is ever guessed.
    """
    line = line.removesuffix(b"\n")
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise InvalidRecordError(f"not JSON ({error})") from error
    if not isinstance(entry, dict):
        raise InvalidRecordError(f"no JSON object but {line[:40]!r}")
    version = entry.get("v")
    if type(version) is int and version > FORMAT_VERSION:
        raise InvalidRecordError(f"format v {version}, newer than the v {FORMAT_VERSION} that this program reads")
    body, suffix = line[:-_CRC_SUFFIX_BYTES] + b"}", line[-_CRC_SUFFIX_BYTES:]
    stored = _CRC_SUFFIX.fullmatch(suffix)
    if stored is None:
        raise InvalidRecordError(f"it ends in {suffix!r} where its crc is expected")
    if int(stored[1], 16) != crc32(body):
        raise InvalidRecordError(f"its crc is {stored[1].decode()}, but its content gives {crc32(body):08x}")
    head = [(key, type(value)) for key, value in islice(entry.items(), len(_HEAD))]
    if head != _HEAD or version != FORMAT_VERSION:
        raise InvalidRecordError(f"it begins with {line[:60]!r} where v, seq, at and kind are expected")
    kind = _KINDS.get(entry["kind"])
    if kind is None:
        raise InvalidRecordError(f"unknown kind {entry['kind']!r}")
    record = _record(kind, entry)
    _check_fields(kind, record.fields)
    return record


def as_read(line: bytes) -> Record:
    """What ``decode`` gives for a line that ``encode`` has just made, without judging it again."""
    entry: dict[str, Any] = orjson.loads(line)
    return _record(_KINDS[entry["kind"]], entry)


def _record(kind: Kind, entry: dict[str, Any]) -> Record:
    """Takes ``entry``, a decoded line, apart."""
    seq, at = entry["seq"], entry["at"]
    for key in ("v", "seq", "at", "kind", "crc"):
        del entry[key]
    return Record(seq, at, kind, entry)


def eval_set_sizes(dataset: Mapping[str, Any]) -> dict[str, int]:
    """How many tasks each evaluation set of a run's ``dataset`` has, by its metrics' area: ``test``, ``test/NAME``.

    In the order in which their groups are numbered; sets without tasks are left out.
    """
    areas = {"test" if name == "val" else name: part for name, part in dataset.items() if name != "train"}
    return {area: part["rows"] for area, part in areas.items() if part}


def _check_fields(kind: Kind, fields: Mapping[str, Any]) -> None:
    expected, optional = FIELDS[kind], OPTIONAL.get(kind, {})
    missing, unknown = expected.keys() - fields.keys(), fields.keys() - expected.keys() - optional.keys()
    if missing or unknown:
        raise InvalidRecordError(f"{kind}: missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    present = {name: field_type for name, field_type in optional.items() if name in fields}
    for name, field_type in {**expected, **present}.items():
        if not field_type.accepts(fields[name]):
            raise InvalidRecordError(f"{kind}: {name} is {fields[name]!r}, expected {field_type.meaning}")


def _check_json(value: object, where: str) -> None:
    """Refuses what orjson would write silently as something else: NaN as null, dates and identifiers as texts."""
    if type(value) in _PLAIN:  # nearly all values are, and they are met at every append
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRecordError(f"{where}: the key {key!r} is not a text")
            _check_json(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _check_json(item, f"{where}[{position}]")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidRecordError(f"{where}: {value!r} is no JSON number; leave it out or use null")
    elif not (value is None or isinstance(value, bool | int | str)):
        raise InvalidRecordError(f"{where}: {type(value).__name__} is no JSON value")
