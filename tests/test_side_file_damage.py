"""Damaged side files of a run that was killed: what was never acknowledged is made again, everything else refused."""

from pathlib import Path
from typing import Any

import pytest
from processes import fixture_d, run_child

from orchestrator.testing import outcome_of_run, read_ledger

ROLLOUTS = Path("run") / "rollouts" / "000001.train.jsonl"
EXIT_REFUSED = 3


def stored_files(folder: Path) -> dict[Path, bytes]:
    """What holds the run's work."""
    folders = [folder / "run" / name for name in ("rollouts", "datums", "local")]
    return {path: path.read_bytes() for each in folders for path in each.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kept_bytes", [1, -1])
def test_a_torn_last_rollout_is_run_again_from_its_turns_and_no_other(
    kept_bytes: int, killed: Path, uninterrupted: dict[str, Any]
) -> None:
    """Of two stored rollouts the second loses all but its first byte, or its newline alone; a third was at its second
    turn."""
    path = killed / ROLLOUTS
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:kept_bytes])
    calls_before = len(samples(killed))
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(killed / "run") == uninterrupted
    rollouts_left, turns = 3 + 4, 2
    turns_kept = 2 + 1
    assert len(samples(killed)) - calls_before == rollouts_left * turns - turns_kept


@pytest.mark.parametrize("damage", ["flipped", "cut out", "doubled"])
def test_a_damaged_rollout_before_the_last_is_refused_and_nothing_is_spent(damage: str, killed: Path) -> None:
    path = killed / ROLLOUTS
    first, second = path.read_bytes().splitlines(keepends=True)
    middle = len(first) // 2
    damaged = {
        "flipped": first[:middle] + bytes([first[middle] ^ 1]) + first[middle + 1 :],
        "cut out": first[:middle] + first[middle + 10 :],
        "doubled": first + first,
    }
    path.write_bytes(damaged[damage] + second)
    before, requests = stored_files(killed), len(read_ledger(killed / "ledger.jsonl"))
    child = fixture_d(killed)
    assert run_child(child) == EXIT_REFUSED
    line = 2 if damage == "doubled" else 1
    assert f"{ROLLOUTS.name}, line {line}" in child.output
    assert stored_files(killed) == before
    assert not [line for line in read_ledger(killed / "ledger.jsonl")[requests:] if is_paid(line)]


def test_stored_datums_that_changed_are_refused_and_nothing_is_trained_from_them(killed: Path) -> None:
    """The sha256 in the journal decides; no checkpoint since batch 0 makes its train step one to redo."""
    [path] = (killed / "run" / "datums").glob("000000.*")
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before, requests = stored_files(killed), len(read_ledger(killed / "ledger.jsonl"))
    child = fixture_d(killed)
    assert run_child(child) == EXIT_REFUSED
    assert f"{path.name}: sha256 is " in child.output
    assert stored_files(killed) == before
    assert not [line for line in read_ledger(killed / "ledger.jsonl")[requests:] if is_paid(line)]


def samples(folder: Path) -> list[dict[str, Any]]:
    """The model calls of all processes."""
    return [line for line in read_ledger(folder / "ledger.jsonl") if line["request"] == "sample"]


def is_paid(line: dict[str, Any]) -> bool:
    """Whether a request costs tokens."""
    return line["request"] in {"sample", "forward_backward", "optim_step"}
