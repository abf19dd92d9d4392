"""Laws of one record: what is written is read back, and nothing else passes for a record."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal.walk import checkpoint_saved, process_started, process_stopped, run_started, state_entered, transition

from orchestrator.journal.records import FIELDS, InvalidRecordError, Kind, Record, decode, encode
from orchestrator.journal.recovery import RunState

AT = "2026-11-30T11:02:03.123456Z"
RUN = RunState()
SAMPLES: dict[Kind, dict[str, Any]] = {
    Kind.RUN_STARTED: run_started(),
    Kind.PROCESS_STARTED: process_started(RUN),
    Kind.STATE_ENTERED: state_entered(RUN),
    Kind.TRANSITION: transition(RUN, attempt=0),
    Kind.CHECKPOINT_SAVED: checkpoint_saved(RUN, "000001", expires_at="2026-12-07T00:00:00+00:00"),
    Kind.CHECKPOINT_LOST: {"batch": 1, "name": "000001", "state_path": "local://weights/000001", "reason": "404"},
    Kind.OPTIMIZER_PROBED: {"passed": True, "restored_difference": 0.0, "fresh_difference": 0.25},
    Kind.CLIENT_LOST: {"batch": 1, "state": "TrainStep", "reason": "RequestFailedError at weights.py:97"},
    Kind.PROCESS_STOPPED: process_stopped(RUN, "failed", "ValueError: no"),
    Kind.RUN_FINISHED: {"batches": 3},
}
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=8,
)


def record(kind: Kind, **changes: Any) -> Record:
    return Record(17, AT, kind, SAMPLES[kind] | changes)


def signed(entry: dict[str, Any]) -> bytes:
    """A line with a right crc around whatever ``entry`` says."""
    body = json.dumps(entry, separators=(",", ":")).encode()
    return body[:-1] + b',"crc":"%08x"}' % crc32(body)


def test_every_kind_has_its_fields_and_a_sample() -> None:
    assert set(FIELDS) == set(SAMPLES) == set(Kind)


@pytest.mark.parametrize("kind", Kind)
def test_a_record_is_read_back_as_written(kind: Kind) -> None:
    line = encode(record(kind))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == decode(line[:-1]) == record(kind)


FORK = {"log_path": "/runs/a", "run_id": "a" * 32, "batch": 1, "seq": 9, "sha256": "b" * 64, "changed": []}


def test_a_field_that_records_may_lack_is_read_back_where_it_is_and_judged_like_any_other() -> None:
    """Journals of versions that did not know of forks have no ``forked_from``, and are read for ever."""
    assert "forked_from" not in decode(encode(record(Kind.RUN_STARTED))).fields
    forked = record(Kind.RUN_STARTED, forked_from=FORK)
    assert decode(encode(forked)) == forked
    for wrong in (None, {}, FORK | {"batch": -1}, FORK | {"more": 1}, {**FORK, "changed": "none"}):
        with pytest.raises(
            InvalidRecordError, match=r"run_started: forked_from is .*, expected an object of log_path, "
        ):
            encode(record(Kind.RUN_STARTED, forked_from=wrong))
    with pytest.raises(InvalidRecordError, match="unknown fields"):
        encode(record(Kind.RUN_FINISHED, forked_from=FORK))


@given(result=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON_VALUES))
def test_any_json_in_a_result_is_read_back(result: dict[str, Any]) -> None:
    assert decode(encode(record(Kind.TRANSITION, result=result))).fields["result"] == result


@pytest.mark.parametrize("kind", Kind)
def test_a_line_is_strict_json_in_the_documented_order_with_the_documented_crc(kind: Kind) -> None:
    line = encode(record(kind)).decode().removesuffix("\n")
    entry = json.loads(line)
    assert list(entry) == ["v", "seq", "at", "kind", *SAMPLES[kind], "crc"]
    assert (entry["v"], entry["seq"], entry["at"], entry["kind"]) == (1, 17, AT, kind.value)
    body = line.partition(',"crc":')[0] + "}"
    assert entry["crc"] == f"{crc32(body.encode()):08x}"
    del entry["crc"]
    assert line.startswith(json.dumps(entry, separators=(",", ":"), ensure_ascii=False)[:-1])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_no_json_number_is_refused_where_it_stands(number: float) -> None:
    with pytest.raises(InvalidRecordError, match=r"transition\.result\.metrics\.loss\[1\]: .*no JSON number"):
        encode(record(Kind.TRANSITION, result={"metrics": {"loss": [1.0, number]}}))
    with pytest.raises(InvalidRecordError, match="seconds"):
        encode(record(Kind.TRANSITION, seconds=number))


@pytest.mark.parametrize("value", [datetime.now(UTC), uuid4(), b"bytes", {1, 2}, {1: "key"}, 2**64, "\ud800", object()])
def test_what_is_no_json_value_is_refused(value: object) -> None:
    with pytest.raises(InvalidRecordError, match="transition"):
        encode(record(Kind.TRANSITION, result={"value": value}))


@pytest.mark.parametrize("kind", Kind)
def test_a_missing_an_unknown_and_a_wrong_field_are_refused_on_both_ways(kind: Kind) -> None:
    head = {"v": 1, "seq": 17, "at": AT, "kind": kind.value}
    assert decode(signed(head | SAMPLES[kind])) == record(kind), "the helper signs good records rightly"
    for name in SAMPLES[kind]:
        fewer = {key: value for key, value in SAMPLES[kind].items() if key != name}
        for bad in (fewer, SAMPLES[kind] | {name: 1.5j}, SAMPLES[kind] | {"novel": 1}):
            with pytest.raises(InvalidRecordError, match=f"{kind}: "):
                encode(Record(17, AT, kind, bad))
        wrong = 1 if SAMPLES[kind][name] is True else True
        for bad in (fewer, SAMPLES[kind] | {name: wrong}, SAMPLES[kind] | {"novel": 1}):
            with pytest.raises(InvalidRecordError, match=f"{kind}: "):
                decode(signed(head | bad))


@pytest.mark.parametrize("kind", Kind)
def test_a_record_with_any_bit_flipped_is_no_record(kind: Kind) -> None:
    line = encode(record(kind))[:-1]
    for bit in range(8 * len(line)):
        damaged = bytearray(line)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidRecordError):
            decode(bytes(damaged))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"", "not JSON"),
        (b"{bad", "not JSON"),
        (b"[1]", "no JSON object"),
        (b"{}", "crc is expected"),
        (b'{"v":2,"anything":"goes"}', "format v 2, newer than the v 1"),
        (signed({"v": 1, "seq": 1, "at": AT, "kind": "novelty"}), "unknown kind 'novelty'"),
        (signed({"v": 0, "seq": 1, "at": AT, "kind": "run_finished", "batches": 1}), "v, seq, at and kind"),
        (signed({"seq": 1, "v": 1, "at": AT, "kind": "run_finished", "batches": 1}), "v, seq, at and kind"),
        (signed({"v": 1, "seq": "1", "at": AT, "kind": "run_finished", "batches": 1}), "v, seq, at and kind"),
        (encode(record(Kind.RUN_FINISHED)).replace(b":3,", b":4,"), "its content gives"),
        (encode(record(Kind.RUN_FINISHED)).replace(b'"crc":"', b'"crc": "'), "crc is expected"),
    ],
)
def test_what_is_no_record_is_told_why(line: bytes, problem: str) -> None:
    with pytest.raises(InvalidRecordError, match=problem):
        decode(line)


def test_a_record_is_never_changed() -> None:
    original = record(Kind.RUN_FINISHED)
    assert replace(original, seq=18) != original
    with pytest.raises(AttributeError):
        original.seq = 18  # type: ignore[misc]
