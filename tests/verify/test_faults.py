"""Every single fault that is put into a run directory is found, and the right file is blamed."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import JOURNAL, Fault, copy_of
from damage.files import file_faults, line_faults, stray_faults, view_faults
from damage.records import record_faults, shorter_journals
from damage.stored import checkpoint_faults, datum_faults, rollout_faults, turn_faults
from processes import Child, fixture_d, run_child
from verify.conftest import SETTINGS

from orchestrator.testing import outcome_of_run
from orchestrator.verify import verify

ROLLOUTS = ("rollouts/000000.eval.jsonl", "rollouts/000001.train.jsonl")
DATUMS = "datums/000001.jsonl.zst"
TURNS = "turns/000001.train.jsonl"


def faults_of_a_finished_run(finished: Path, other: Path) -> Iterator[Fault]:
    """One list, in the order of the checks."""
    yield from file_faults(finished, JOURNAL, other)
    yield from line_faults(finished, JOURNAL, other)
    yield from record_faults(finished)
    yield from shorter_journals(finished)
    for name in ROLLOUTS:
        yield from file_faults(finished, name, other)
        yield from line_faults(finished, name, other)
    yield from rollout_faults(ROLLOUTS[1])
    yield from file_faults(finished, DATUMS, other)
    yield from datum_faults(1, journaled=True)
    yield from stray_faults(finished)
    yield from checkpoint_faults(finished)
    yield from view_faults(finished, other)


def misses(run: Path, faults: list[Fault], folder: Path) -> list[str]:
    """The faults that ``verify`` does not find, or for which it blames the wrong file."""
    missed = []
    for number, fault in enumerate(faults):
        damaged = copy_of(run, folder / str(number))
        fault.inflict(damaged)
        finding = verify(damaged).finding
        if finding is None:
            missed.append(f"{fault.name}: not found")
        elif not finding.path.startswith(f"{damaged / fault.blamed}"):
            missed.append(f"{fault.name}: blamed {fault.blamed}, found {finding.message}")
    return missed


def test_every_fault_of_a_finished_run_is_found(finished: Path, other: Path, tmp_path: Path) -> None:
    faults = list(faults_of_a_finished_run(finished, other))
    assert misses(finished, faults, tmp_path) == []
    assert len(faults) >= 400
    assert len({fault.name for fault in faults}) == len(faults)


def test_every_fault_of_unfinished_rollouts_is_found(in_rollout: Child, other: Path, tmp_path: Path) -> None:
    """Their order is that in which they finished, and a missing one is sampled again."""
    name = "rollouts/000001.train.jsonl"
    faults = [
        *file_faults(in_rollout.log_path, name, other, unfinished=True),
        *line_faults(in_rollout.log_path, name, other, ordered=False),
        *(fault for fault in rollout_faults(name) if "reward changed" not in fault.name),
        *file_faults(in_rollout.log_path, TURNS, other, unfinished=True),
        *turn_faults(TURNS),
    ]
    # Whose reward it was, and whether it failed, only the line itself says until the state is done.
    faults = [fault for fault in faults if "outcome" not in fault.name]
    assert misses(in_rollout.log_path, faults, tmp_path) == []
    assert len(faults) >= 20


def test_every_fault_of_an_unfinished_train_step_is_found(in_train_step: Child, other: Path, tmp_path: Path) -> None:
    run = in_train_step.log_path
    faults = [*file_faults(run, DATUMS, other), *datum_faults(1, journaled=False)]
    faults = [fault for fault in faults if not fault.name.endswith("deleted")]  # it is made again
    assert misses(run, faults, tmp_path) == []


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 0.99])
def test_datums_of_an_unfinished_train_step_that_were_cut_short_are_made_again(
    in_train_step: Child, finished: Path, tmp_path: Path, part: float
) -> None:
    """Nothing that survived was trained on them."""
    shutil.copytree(in_train_step.log_path, tmp_path / "run")
    data = (tmp_path / "run" / DATUMS).read_bytes()
    (tmp_path / "run" / DATUMS).write_bytes(data[: int(part * len(data))])
    assert run_child(fixture_d(tmp_path, *SETTINGS)) == 0
    assert outcome_of_run(tmp_path / "run") == outcome_of_run(finished)


def test_a_finding_has_its_place_and_its_cure(finished: Path, tmp_path: Path) -> None:
    """The third line of a file of rollouts, which begins where the first two end."""
    run = copy_of(finished, tmp_path / "run")
    path = run / ROLLOUTS[1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.unlink()
    path.write_bytes(b"".join([*lines[:2], lines[2].replace(b'"turns"', b'"terms"'), *lines[3:]]))
    finding = verify(run).finding
    assert finding is not None
    assert (finding.path, finding.line, finding.offset) == (str(path), 3, len(lines[0] + lines[1]))
    assert "crc" in finding.problem
    assert "Restore the file from a copy" in finding.cure


def test_a_torn_last_record_is_no_fault_and_is_told(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    journal = run / JOURNAL
    content = journal.read_bytes()
    journal.unlink()
    journal.write_bytes(content + b'{"v":1,"seq"')
    verdict = verify(run)
    assert verdict.passed
    assert f"a torn last one at byte {len(content)}" in verdict.checked["journal"]


@pytest.mark.parametrize("name", ["rollouts/.000001.train.jsonl.tmp", "local/run/weights/.unfinished-x", ".a.tmp"])
def test_what_a_kill_leaves_of_a_file_without_its_name_is_no_fault(finished: Path, tmp_path: Path, name: str) -> None:
    run = copy_of(finished, tmp_path / "run")
    (run / name).write_bytes(b"half")
    assert verify(run).passed
