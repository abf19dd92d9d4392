"""Repair: a torn last record and views are put right, everything else is refused, and nothing is ever lost."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from damage import CHECKPOINTS, CONFIG, JOURNAL, METRICS, Fault, copy_of
from damage.files import file_faults, line_faults, stray_faults, view_faults
from damage.records import record_faults
from damage.stored import checkpoint_faults, datum_faults, rollout_faults
from processes import Child, fixture_d, run_child
from verify.conftest import SETTINGS

from orchestrator.cli import main
from orchestrator.errors import EXIT_REFUSED, RefusedError
from orchestrator.journal.lock import LOCK_NAME, RunLock
from orchestrator.repair import repair
from orchestrator.testing import outcome_of_run
from orchestrator.verify import verify

TORN = b'{"v":1,"seq":9,"kind":"tran'


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run directory but the lock, which names who looked last."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOCK_NAME
    }


@pytest.fixture(scope="session")
def outcome(finished: Path) -> dict[str, Any]:
    """What the run comes to when nothing disturbs it."""
    return outcome_of_run(finished)


def test_every_fault_of_a_view_is_repaired_and_its_original_kept(finished: Path, other: Path, tmp_path: Path) -> None:
    for number, fault in enumerate(view_faults(finished, other)):
        run = copy_of(finished, tmp_path / str(number))
        fault.inflict(run)
        damaged = contents(run)
        told: list[str] = []
        assert repair(run, tell=told.append) == len(told) == 1, fault.name
        assert told[0].startswith(str(run / fault.blamed))
        assert verify(run).passed, fault.name
        kept = {f"{fault.blamed}.before-repair-0": damaged[fault.blamed]} if fault.blamed in damaged else {}
        assert contents(run) == contents(finished) | kept, fault.name


def test_a_torn_last_record_is_kept_and_cut_off_as_a_resume_does(
    in_rollout: Child, tmp_path: Path, outcome: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """With two views that are faulty as well; then the run goes on as if nothing had happened."""
    shutil.copytree(in_rollout.log_path, tmp_path / "run")
    run = tmp_path / "run"
    journal = (run / JOURNAL).read_bytes()
    (run / JOURNAL).write_bytes(journal + TORN)
    (run / METRICS).write_bytes((run / METRICS).read_bytes()[:20])
    (run / CHECKPOINTS).unlink()
    assert main(["journal", str(run), "--repair"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in told] == [str(run / name) for name in (JOURNAL, METRICS, CHECKPOINTS)]
    assert f"{len(TORN)} bytes of a torn last record at byte {len(journal)}" in told[0]
    assert (run / JOURNAL).read_bytes() == journal
    assert (run / f"{JOURNAL}.torn-{len(journal)}").read_bytes() == TORN
    assert (run / f"{JOURNAL}.before-repair-0").read_bytes() == journal + TORN
    assert verify(run).passed
    assert main(["journal", str(run), "--repair"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert run_child(fixture_d(tmp_path, *SETTINGS)) == 0
    assert outcome_of_run(run) == outcome


def test_a_second_repair_keeps_the_second_original_too(finished: Path, tmp_path: Path) -> None:
    run = copy_of(finished, tmp_path / "run")
    for number, damaged in enumerate((b"", b"{}")):
        (run / CONFIG).unlink()
        (run / CONFIG).write_bytes(damaged)
        assert repair(run, tell=lambda _line: None) == 1
        assert (run / f"{CONFIG}.before-repair-{number}").read_bytes() == damaged
    assert verify(run).passed


def faults_beyond_repair(finished: Path, other: Path) -> list[Fault]:
    """Some of every kind."""
    faults = [
        *file_faults(finished, JOURNAL, other),
        *line_faults(finished, JOURNAL, other),
        *(fault for fault in record_faults(finished) if fault.blamed != METRICS),
        *file_faults(finished, "rollouts/000001.train.jsonl", other),
        *rollout_faults("rollouts/000001.train.jsonl"),
        *datum_faults(1, journaled=True),
        *stray_faults(finished),
        *checkpoint_faults(finished),
    ]
    return faults[::4]


def test_what_cannot_be_repaired_is_refused_in_the_words_of_verify_and_left(
    finished: Path, other: Path, tmp_path: Path
) -> None:
    """Even where a view is faulty beside it, which alone would be repaired."""
    for number, fault in enumerate(faults_beyond_repair(finished, other)):
        run = copy_of(finished, tmp_path / str(number))
        fault.inflict(run)
        (run / METRICS).unlink()
        damaged = contents(run)
        told: list[str] = []
        finding = verify(run).finding
        with pytest.raises(RefusedError) as refused:
            repair(run, tell=told.append)
        assert finding is not None
        assert (str(refused.value), told) == (finding.message, []), fault.name
        assert contents(run) == damaged, fault.name


def test_a_healthy_run_has_nothing_to_repair(
    finished: Path, in_train_step: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, log_path in enumerate((finished, in_train_step.log_path)):
        run = copy_of(log_path, tmp_path / str(number))
        assert main(["journal", str(run), "--repair"]) == 0
        assert "nothing to do" in capsys.readouterr().out
        assert contents(run) == contents(log_path)


def test_a_run_at_work_is_not_repaired(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = copy_of(finished, tmp_path / "run")
    (run / METRICS).unlink()
    with RunLock.acquire(run):
        assert main(["journal", str(run), "--repair"]) == EXIT_REFUSED
    assert "works on this run" in capsys.readouterr().err
    assert not (run / METRICS).exists()


def test_repair_takes_no_option_of_the_story(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", str(finished), "--repair", "--json"]) == 2
    assert "--repair" in capsys.readouterr().err


def test_where_no_run_is_repair_makes_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", str(tmp_path / "nowhere"), "--repair"]) == 2
    assert "no run is there" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
