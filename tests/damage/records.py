"""Faults of the journal that a reader of single lines cannot see: every crc is right."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import orjson

from damage import JOURNAL, METRICS, Fault, changes, rewriting
from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind, Record, encode
from orchestrator.names import State


def record_faults(log_path: Path) -> Iterator[Fault]:
    """Each value of each kind of record changed, with the line's crc made right again."""
    records = read_journal(log_path).records
    for record in _one_of_each(records):
        for path, changed in changes(record.fields):
            if (path, record.fields.get("source")) != ("seconds", State.LOG):  # which no row tells
                yield _with_record(records, replace(record, fields=changed), path, _blamed(record, path))
        yield _with_record(records, replace(record, at="yesterday"), "at", JOURNAL)
    jump = next(record for record in records if record.fields.get("dest") == State.TRAIN_STEP)
    yield _with_record(records, replace(jump, fields={**jump.fields, "dest": State.LOG}), "a jump", JOURNAL)
    middle = len(records) // 2
    again = [*records[:middle], *(replace(record, seq=record.seq - 1) for record in records[middle + 1 :])]
    yield rewriting(f"record {middle} left out, seq made right", JOURNAL, b"".join(map(encode, again)))


def shorter_journals(log_path: Path) -> Iterator[Fault]:
    """A journal that ends a batch earlier, or more, than the files beside it."""
    records = read_journal(log_path).records
    starts = [
        record.seq for record in records if record.kind is Kind.STATE_ENTERED and record.fields["state"] == State.LOG
    ]
    for seq in starts[:-1]:
        content = b"".join(map(encode, records[:seq]))
        yield replace(rewriting(f"ends before record {seq}", JOURNAL, content), blamed="")


def _with_record(records: list[Record], changed: Record, path: str, blamed: str) -> Fault:
    lines = [_encode(changed) if record.seq == changed.seq else encode(record) for record in records]
    what = f"record {changed.seq} ({changed.kind} {changed.fields.get('source', '')}): {path} changed"
    return replace(rewriting(what, JOURNAL, b"".join(lines)), blamed=blamed)


def _encode(record: Record) -> bytes:
    """``encode`` without its refusals."""
    body = orjson.dumps({"v": 1, "seq": record.seq, "at": record.at, "kind": record.kind, **record.fields})
    return body[:-1] + b',"crc":"%08x"}\n' % crc32(body)


def _one_of_each(records: list[Record]) -> Iterator[Record]:
    """One record of each kind, and one transition out of each state, from the middle of the run where there is one."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = (record.kind.value, str(record.fields.get("source")))
        if key not in found or record.fields.get("batch", 0) <= 1:
            found[key] = record
    return iter(found.values())


def _blamed(record: Record, path: str) -> str:
    """Which file accuses a changed field: the journal's line, unless only another file knows better."""
    if path == "run_id":
        return "local"
    if path == "seconds" or (path.startswith("result.metrics.") and not _stored_beside(record, path)):
        return METRICS
    if path == "result.sha256" and record.fields["result"]["file"] is not None:
        return str(record.fields["result"]["file"])
    return JOURNAL


def _stored_beside(record: Record, path: str) -> bool:
    """Whether a side file gives this metric too: the datums' header has all but what the step itself measured."""
    metric = path.removeprefix("result.metrics.")
    if record.fields["source"] == State.MAYBE_EVALUATE:
        return metric.startswith("test/") and metric.count("/") == 1
    return metric.startswith(("rollout/", "env/")) or metric == "optim/lr"
