"""Files that were torn, damaged, or have no room left: nothing is lost, or the run refuses to go on."""

import json
from pathlib import Path
from typing import Any

import pytest
from observers import FillDiskAt
from processes import fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.testing import outcome_of_run, read_ledger


def test_a_torn_last_record_is_kept_aside_and_the_run_goes_on(killed: Path, uninterrupted: dict[str, Any]) -> None:
    """H1."""
    child = fixture_d(killed)
    journal = child.log_path / "journal.jsonl"
    offset, torn = journal.stat().st_size, b'{"v":1,"seq":7,"kind":"tran'
    with journal.open("ab") as file:
        file.write(torn)
    assert run_child(child) == 0
    assert journal.with_name(f"journal.jsonl.torn-{offset}").read_bytes() == torn
    told = [json.loads(line) for line in (child.log_path / "log.jsonl").read_text().splitlines()]
    assert [line["offset"] for line in told if "torn" in line["event"]] == [offset]
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert outcome_of_run(child.log_path) == uninterrupted


def test_a_damaged_record_is_refused_with_its_place_before_anything_is_spent(killed: Path) -> None:
    """H2."""
    child = fixture_d(killed)
    journal = child.log_path / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = b"".join([*lines[:2], b"{bad\n", *lines[3:]])
    journal.write_bytes(damaged)
    requests = read_ledger(child.ledger)
    assert run_child(child) == 3
    assert f"journal.jsonl, line 3 (byte {len(lines[0] + lines[1])})" in child.output
    assert journal.read_bytes() == damaged
    assert read_ledger(child.ledger) == requests


@pytest.mark.parametrize("kind", ["transition", "state_entered"])
def test_without_room_for_the_record_nothing_is_trained_and_nothing_is_lost(
    kind: str, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H20: the record that leaves Rollout, or the one that enters TrainStep, meets a full disk."""
    occurrence = CYCLE.index(State.ROLLOUT) if kind == "transition" else CYCLE.index(State.TRAIN_STEP)
    journal = tmp_path / "run" / "journal.jsonl"
    full = FillDiskAt(f"append:before:{kind}", occurrence, journal)
    assert run_child(fixture_d(tmp_path, observer=full)) == 1
    assert "ENOSPC" in fixture_d(tmp_path).output
    last = State.ROLLOUT if kind == "transition" else State.TRAIN_STEP
    stopped = read_journal(tmp_path / "run").run
    assert (stopped.batch, stopped.state, stopped.entered) == (0, last, kind == "transition")
    requests = [line["request"] for line in read_ledger(tmp_path / "ledger.jsonl")]
    assert requests.count("sample") == 8
    assert "forward_backward" not in requests

    assert run_child(fixture_d(tmp_path)) == 0
    entered = [record.fields for record in read_journal(tmp_path / "run").records if record.kind == "state_entered"]
    assert entered[occurrence + (kind == "transition")]["state"] == last
    assert outcome_of_run(tmp_path / "run") == uninterrupted
    requests = [line["request"] for line in read_ledger(tmp_path / "ledger.jsonl")]
    assert requests.count("sample") == 3 * 8


def test_without_room_for_a_rollout_the_journal_says_so_and_its_stored_turns_are_not_sampled_again(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The second rollout's line meets a full disk; the journal still has room for why."""
    rollouts = tmp_path / "run" / "rollouts" / "000000.train.jsonl"
    child = fixture_d(tmp_path, "concurrency=1", observer=FillDiskAt("request:after:sample", 3, rollouts))
    assert run_child(child) == 1
    stop = read_journal(tmp_path / "run").run.last_stop
    assert stop is not None
    assert stop.reason == "failed"
    assert "000000.train.jsonl: could not be written: ENOSPC" in str(stop.error)
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
    assert [line["request"] for line in read_ledger(tmp_path / "ledger.jsonl")].count("sample") == 3 * 8
