"""A disk that fails at any kind of step, for any part of the run directory, costs a process and no work."""

from pathlib import Path
from typing import Any

import pytest
from observers import AtNewStep
from processes import fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.testing import Fault, FaultyDisk, outcome_of_run

SETTINGS = ("save_every=2", "rolling_save_every=1", "concurrency=1", "max_attempts=100")
PARTS = {"journal.jsonl", "rollouts", "turns", "datums", "metrics.jsonl", "checkpoints.jsonl", "config.json", "local"}
EXIT_FAILED = 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to on a healthy disk."""
    child = fixture_d(tmp_path_factory.mktemp("healthy"), *SETTINGS)
    assert run_child(child) == 0
    return outcome_of_run(child.log_path)


@pytest.mark.parametrize("fault", Fault)
def test_no_failing_step_of_the_disk_changes_the_end(fault: Fault, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    """H20 for every file: each process fails at the first step that is new, says what to do, and the run goes on."""
    tried: set[tuple[str, str]] = set()
    note = tmp_path / "step.txt"
    while True:
        note.unlink(missing_ok=True)
        before = read_journal(tmp_path / "run").run
        disk = FaultyDisk(fault, AtNewStep(frozenset(tried), tmp_path / "run", note))
        child = fixture_d(tmp_path, *SETTINGS, disk=disk)
        code = run_child(child)
        if not note.exists():
            break
        step, part = note.read_text().split()
        assert code == EXIT_FAILED, f"{step} {part}: {child.output}"
        tried.add((step, part))
        after = read_journal(tmp_path / "run").run
        assert (after.batch, after.num_records) >= (before.batch, before.num_records)
        told = child.output.splitlines()[-2]
        assert part in told or part == "folder", f"{step} {part} is told as: {told}"
        assert "run the same command again" in told.lower(), told
    assert code == 0
    steps = {"write", "sync", "rename"} if fault is Fault.EIO else {"write"}
    assert {part for step, part in tried if step == "write"} == PARTS
    assert {step for step, _ in tried} == steps
    assert outcome_of_run(tmp_path / "run") == undisturbed
