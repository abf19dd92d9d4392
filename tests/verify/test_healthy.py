"""No false alarm: whatever a kill leaves, at whichever point, passes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from damage import copy_of
from observers import HoldAt, SnapshotAtEveryPoint
from processes import Child, fixture_d, fork_context, run_child, run_command, start_child, wait_for
from verify.conftest import SETTINGS

from orchestrator.backends.local.checkpoints import CheckpointStore
from orchestrator.backends.local.clients import LocalRestClient
from orchestrator.cli import main
from orchestrator.errors import FaultFoundError
from orchestrator.journal.log import read_journal
from orchestrator.testing import KillAt
from orchestrator.verify import CHECKS, verify
from orchestrator.verify.checkpoints import check_checkpoints, check_service
from orchestrator.verify.evidence import gather


def alarms(snapshots: Path) -> tuple[int, dict[str, str]]:
    """How many of the run directories in a folder hold a run, and what ``verify`` says against which."""
    judged = {
        snapshot.name: verify(snapshot) for snapshot in sorted(snapshots.iterdir()) if read_journal(snapshot).records
    }
    return len(judged), {name: verdict.lines()[-1] for name, verdict in judged.items() if not verdict.passed}


def test_what_a_kill_leaves_at_any_point_of_a_run_passes(watched: Child) -> None:
    num_judged, found = alarms(watched.folder / "snapshots")
    assert found == {}
    assert num_judged >= 100


@pytest.mark.parametrize(
    "killed_at",
    [
        "request:after:delete_checkpoint_from_tinker_path",  # the journal still holds it to live
        "append:before:checkpoint_saved",
        "append:before:run_started",
        "append:after:run_started",
        "append:before:run_finished",
    ],
)
def test_what_a_kill_leaves_at_any_point_of_a_recovery_passes(tmp_path: Path, killed_at: str) -> None:
    assert run_child(fixture_d(tmp_path, *SETTINGS, observer=KillAt(killed_at))) == -9
    observer = SnapshotAtEveryPoint(tmp_path / "run", tmp_path / "snapshots")
    assert run_child(fixture_d(tmp_path, *SETTINGS, observer=observer)) == 0
    _, found = alarms(tmp_path / "snapshots")
    assert found == {}
    assert verify(tmp_path / "run").lines()[-1] == "PASS"


def test_what_a_kill_leaves_while_a_finished_run_is_extended_passes(watched: Child, tmp_path: Path) -> None:
    """Its views are those of the shorter run until the new process has made them anew."""
    shutil.copytree(watched.log_path, tmp_path / "run")
    observer = SnapshotAtEveryPoint(tmp_path / "run", tmp_path / "snapshots")
    settings = (*SETTINGS, "n_epochs=2", "eval_every=3")
    assert run_child(fixture_d(tmp_path, *settings, observer=observer)) == 0
    num_judged, found = alarms(tmp_path / "snapshots")
    assert found == {}
    assert num_judged >= 30


@pytest.mark.parametrize("read_late", ["journal", "everything"])
def test_a_run_that_goes_on_while_it_is_read_passes(watched: Child, read_late: str) -> None:
    """File names and views as they were at a point, and the rest, or all files, as they are when the run is over."""
    finished = gather(watched.log_path)
    snapshots = [path for path in (watched.folder / "snapshots").iterdir() if (path / "checkpoints.jsonl").exists()]
    for snapshot in sorted(snapshots)[::3]:
        evidence = replace(gather(snapshot), log_path=watched.log_path)
        if read_late == "journal":
            evidence = replace(evidence, records=finished.records, run=finished.run)
        for _, check in CHECKS:
            check(evidence)


@pytest.mark.parametrize("agent", ["failing", "constant", "one_fails_first"])
def test_a_run_of_troubled_agents_passes(tmp_path: Path, agent: str) -> None:
    """Failed rollouts, skipped train steps, and a second attempt at a rollout."""
    settings = (f"agent=troubled:{agent}", "max_retries=1", "max_batches=2", "max_no_progress_batches=9")
    assert run_child(fixture_d(tmp_path, *settings)) == (1 if agent == "failing" else 0)
    assert verify(tmp_path / "run").lines()[-1] == "PASS"


def test_a_run_at_work_is_judged_without_disturbing_it(tmp_path: Path) -> None:
    """Held in the middle of SwapSampler, then let go."""
    context = fork_context()
    reached, let_go = context.Semaphore(0), context.Semaphore(0)
    observer = HoldAt("request:before:save_state", frozenset({2}), reached, let_go)
    process = start_child(fixture_d(tmp_path, *SETTINGS, observer=observer))
    assert reached.acquire(timeout=60)
    verdict = verify(tmp_path / "run")
    let_go.release()
    assert wait_for(process) == 0
    assert verdict.lines()[-1] == "PASS"


async def test_what_the_service_keeps_is_looked_for_there(finished: Path, tmp_path: Path) -> None:
    """Over the same surface: here it is the embedded backend's that answers."""
    damaged = copy_of(finished, tmp_path / "run")
    shutil.rmtree(damaged / "local" / "run" / "weights" / "000002")
    there, gone = (LocalRestClient(CheckpointStore(path / "local", clear=False)) for path in (finished, damaged))
    assert await check_service(gather(finished), there) == "6 checkpoints and samplers, 0 more have expired"
    with pytest.raises(FaultFoundError, match="no longer has local://run/weights/000002") as fault:
        await check_service(gather(damaged), gone)
    assert fault.value.path == damaged / "journal.jsonl"


def test_without_a_key_what_the_service_keeps_is_said_not_to_be_checked(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    evidence = gather(finished)
    evidence.run.config = {**evidence.run.config, "backend": "tinker"}
    assert "not checked: TINKER_API_KEY is not set" in check_checkpoints(evidence)


def test_the_command_tells_what_it_checked_and_writes_nothing(
    watched: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in watched.log_path.rglob("*")}
    assert main(["verify", str(watched.log_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1] == "PASS"
    assert [line.split()[0] for line in told[:-1]] == [
        "journal",
        "rollouts",
        "turns",
        "datums",
        "strays",
        "checkpoints",
        "views",
    ]
    assert main(["verify", str(watched.log_path), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["passed"], verdict["finding"]) == (True, None)
    assert {path: path.stat().st_mtime_ns for path in watched.log_path.rglob("*")} == before
    code, _, stderr = run_command(tmp_path, "verify", "nowhere")
    assert code == 2
    assert "no run is there" in stderr
