"""A fork begins with its parent's weights of any batch and comes to what the parent would have come to (issue 5)."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from observers import HoldAt
from processes import Child, fixture_d, fork_context, run_child, run_command, start_child, wait_for
from tinker_runs import final_path, run_unseen
from tinker_server import KEY, TinkerServer

from orchestrator.cli import main
from orchestrator.journal.log import JOURNAL_NAME, read_journal
from orchestrator.journal.records import encode
from orchestrator.names import State, batch_name
from orchestrator.testing import KillAt, KillAtNumber, NotePoints, outcome_of_run, read_ledger, watch_nothing
from orchestrator.verify import verify

FORKED_AT = 2
NUM_KILLS = 3
PLAYED = ("rollouts", "datums")
"""Where the number in a file's name is that of the batch itself, and not of batches trained."""
PARENT = ("save_every=0", "rolling_save_every=0")
"""Only its first weights and its last are saved, so a fork redoes two train steps."""


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run; its directory is not to be written to."""
    child = fixture_d(tmp_path_factory.mktemp("parent"), *PARENT)
    assert run_child(child) == 0
    return child


def fork_of(parent: Path, folder: Path, *settings: str, batch: int = FORKED_AT, observer: Any = watch_nothing) -> Child:
    """The fork command in ``folder``, whose run directory is ``run``."""
    folder.mkdir(exist_ok=True)
    return Child(settings, folder, observer, forked=(parent, batch))


def from_batch(outcome: dict[str, Any], first: int) -> dict[str, Any]:
    """What of a run's outcome is of its batches from ``first`` on; its first checkpoint is a fork's own affair."""

    def is_later(path: str) -> bool:
        numbers = [part[: len(batch_name(0))] for part in Path(path).parts]
        return any(number.isdecimal() and int(number) > first - path.startswith(PLAYED) for number in numbers)

    return {
        "position": outcome["position"],
        "results": {batch: facts for batch, facts in outcome["results"].items() if batch >= first},
        "metrics": [row for row in outcome["metrics"] if row["step"] >= first],
        "files": {path: sha256 for path, sha256 in outcome["files"].items() if is_later(path)},
    }


def test_a_fork_with_nothing_changed_is_the_parents_own_continuation(parent: Child, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in parent.log_path.rglob("*")}
    child = fork_of(parent.log_path, tmp_path)
    assert run_child(child) == 0, child.output
    assert {path: path.stat().st_mtime_ns for path in parent.log_path.rglob("*")} == before
    forked, whole = outcome_of_run(child.log_path), outcome_of_run(parent.log_path)
    assert from_batch(forked, FORKED_AT) == from_batch(whole, FORKED_AT)
    assert "local/run/weights/000003-final/optimizer.safetensors" in from_batch(forked, FORKED_AT)["files"]
    played = {Path(path).name[: len(batch_name(0))] for path in forked["files"] if path.startswith(PLAYED)}
    assert played == {batch_name(FORKED_AT)}, "nothing of the batches before is copied"
    assert [line["request"] for line in read_ledger(child.ledger)].count("optim_step") == FORKED_AT + 1
    verdict = verify(child.log_path)
    assert verdict.passed, verdict.lines()


def test_a_fork_says_where_it_comes_from_and_what_it_changes(
    parent: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With another learning rate it plays the same batch 2, trains otherwise, and goes on further."""
    child = fork_of(parent.log_path, tmp_path, "learning_rate=0.01", "n_epochs=2", "max_batches=4")
    assert run_child(child) == 0, child.output
    records, source = read_journal(child.log_path).records, read_journal(parent.log_path)
    assert records[0].fields["forked_from"] == {
        "log_path": str(parent.log_path),
        "run_id": source.run.run_id,
        "batch": FORKED_AT,
        "seq": next(
            record.seq
            for record in source.records
            if (record.fields.get("source"), record.fields.get("batch")) == (State.TRAIN_STEP, FORKED_AT - 1)
        ),
        "sha256": records[0].fields["forked_from"]["sha256"],
        "changed": [
            {"field": "n_epochs", "old": 1, "new": 2},
            {"field": "max_batches", "old": None, "new": 4},
            {"field": "learning_rate", "old": 0.001, "new": 0.01},
        ],
    }
    run = read_journal(child.log_path).run
    assert (run.first_batch, sorted(run.batches), run.schedule_batches) == (2, [2, 3, 4], source.run.num_batches)
    forked, whole = outcome_of_run(child.log_path), outcome_of_run(parent.log_path)
    assert [row["step"] for row in forked["metrics"]] == [2, 3]
    assert forked["results"][2][State.ROLLOUT] == whole["results"][2][State.ROLLOUT]
    for name in ("model", "optimizer"):
        final = f"{name}.safetensors"
        assert forked["files"][f"local/run/weights/000004-final/{final}"]
    assert (
        forked["results"][2][State.TRAIN_STEP]["learning_rate"],
        whole["results"][2][State.TRAIN_STEP]["learning_rate"],
    ) == (0.01, 0.001)
    assert forked["results"][3][State.ROLLOUT] != forked["results"][2][State.ROLLOUT]
    verdict = verify(child.log_path)
    assert verdict.passed, verdict.lines()
    liars = read_journal(child.log_path).records
    liars[0].fields["forked_from"]["changed"][2]["new"] = 0.1
    lying = tmp_path / "lying"
    lying.mkdir()
    (lying / JOURNAL_NAME).write_bytes(b"".join(map(encode, liars)))
    assert "forked_from.changed tells learning_rate=0.1" in verify(lying).lines()[-1]
    grandchild = fork_of(child.log_path, tmp_path / "grandchild", batch=3)
    assert run_child(grandchild) == 0, grandchild.output
    again = outcome_of_run(grandchild.log_path)
    assert again["results"][3] == forked["results"][3]
    assert (
        again["files"]["local/run/weights/000004-final/model.safetensors"]
        == (forked["files"]["local/run/weights/000004-final/model.safetensors"])
    )
    code, _, told = run_command(tmp_path, "fork", "run", "--batch", "1", "log_path=other")
    assert code == 2
    assert f"was forked at batch 2 from the run in {parent.log_path}" in told


@pytest.mark.parametrize("batch", [0, 3])
def test_a_fork_may_begin_with_the_first_weights_and_with_the_last(batch: int, parent: Child, tmp_path: Path) -> None:
    child = fork_of(parent.log_path, tmp_path, batch=batch)
    assert run_child(child) == 0, child.output
    forked, whole = outcome_of_run(child.log_path), outcome_of_run(parent.log_path)
    assert forked["metrics"] == [row for row in whole["metrics"] if row["step"] >= batch]
    verdict = verify(child.log_path)
    assert verdict.passed, verdict.lines()


def test_what_a_fork_cannot_be_is_refused_before_anything_is_made(parent: Child, tmp_path: Path) -> None:
    def refused(*settings: str, batch: str = "2") -> str:
        arguments = ("fork", str(parent.log_path), "--batch", batch, *settings)
        code, _, told = run_command(tmp_path, *arguments)
        assert code == 2, told
        return told

    assert "log_path: expected the directory of the new run" in refused("seed=1")
    assert "has weights after 0 to 3 batches" in refused("log_path=new", batch="4")
    assert "lora_rank, local.dtype: a fork begins with its parent's weights" in refused(
        "log_path=new", "lora_rank=4", "local.dtype=bfloat16"
    )
    assert "did you mean learning_rate?" in refused("log_path=new", "learning_rte=1")
    assert "the configuration has only 1 batches" in refused("log_path=new", "max_batches=1")
    assert f"which is no fork; give another log_path to fork {parent.log_path}" in refused(
        f"log_path={parent.log_path}"
    )
    assert not (tmp_path / "new").exists()


def test_a_fork_killed_on_its_way_goes_on_by_the_same_command(parent: Child, tmp_path: Path) -> None:
    """Killed twice on the way of each fork: at every few points up to its first checkpoint, and during the resume."""
    undisturbed = fork_of(parent.log_path, tmp_path / "undisturbed", observer=NotePoints(tmp_path / "points"))
    assert run_child(undisturbed) == 0, undisturbed.output
    expected = outcome_of_run(undisturbed.log_path)
    points = (tmp_path / "points").read_text().splitlines()
    begun = points.index("append:after:checkpoint_saved") + 2
    assert begun > 30
    for number in [*range(0, begun, begun // NUM_KILLS), points.index("append:before:checkpoint_saved")]:
        folder = tmp_path / f"killed-{number}"
        for at in (number, number // 2 + 3):
            killed = fork_of(parent.log_path, folder, observer=KillAtNumber(at, tmp_path / f"point-{number}"))
            assert run_child(killed) == -9, killed.output
        child = fork_of(parent.log_path, folder)
        assert run_child(child) == 0, child.output
        assert outcome_of_run(child.log_path) == expected, points[number]
        verdict = verify(child.log_path)
        assert verdict.passed, verdict.lines()


def test_a_fork_needs_its_parent_until_its_first_checkpoint_and_then_no_more(
    parent: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent moves away between the first record and the first checkpoint; later it is deleted."""
    place, elsewhere = tmp_path / "parent", tmp_path / "elsewhere"
    shutil.copytree(parent.log_path, place)
    assert run_child(fork_of(place, tmp_path / "fork", observer=KillAt("append:after:process_started"))) == -9
    place.rename(elsewhere)
    stranded = fork_of(place, tmp_path / "fork")
    assert run_child(stranded) == 3
    run_id = read_journal(elsewhere).run.run_id
    assert f"and its parent, run {run_id} in {place}, cannot give the weights" in stranded.output
    assert "Restore the parent there, or give its place" in stranded.output
    after_checkpoint = KillAt("append:after:checkpoint_saved")
    assert run_child(fork_of(elsewhere, tmp_path / "fork", observer=after_checkpoint)) == -9
    assert main(["status", str(tmp_path / "fork" / "run")]) == 0
    told = capsys.readouterr().out
    assert f"forked at batch 2 from run {run_id} in {place}" in told
    assert "resumes at PublishModel of batch 2, of 3 batches" in told
    shutil.rmtree(elsewhere)
    child = fork_of(elsewhere.parent / "parent", tmp_path / "fork")
    assert run_child(child) == 0, child.output
    assert outcome_of_run(child.log_path)["metrics"] == outcome_of_run(parent.log_path)["metrics"][FORKED_AT:]


def test_a_run_at_work_is_forked_and_does_not_notice(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Held in batch 1; the fork goes to the end meanwhile, and both come to the same."""
    reached, let_go = (fork_context().Semaphore(0) for _ in range(2))
    observer = HoldAt("request:before:sample", frozenset({13}), reached, let_go)
    process = start_child(fixture_d(tmp_path, observer=observer))
    assert reached.acquire(timeout=60)
    child = fork_of(tmp_path / "run", tmp_path / "fork", batch=1)
    assert run_child(child) == 0, child.output
    let_go.release()
    assert wait_for(process) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
    assert from_batch(outcome_of_run(child.log_path), 1) == from_batch(uninterrupted, 1)


def test_a_run_is_forked_on_a_service(tmp_path: Path, service: TinkerServer, undisturbed_child: Child) -> None:
    child = replace(fork_of(undisturbed_child.log_path, tmp_path), environ={"TINKER_API_KEY": KEY})
    assert run_unseen(child) == 0, child.output
    assert (
        outcome_of_run(child.log_path)["metrics"] == outcome_of_run(undisturbed_child.log_path)["metrics"][FORKED_AT:]
    )
    checkpoints = service.checkpoints()
    assert checkpoints[final_path(child)] == checkpoints[final_path(undisturbed_child)]
