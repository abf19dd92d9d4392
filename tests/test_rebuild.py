"""Weights of any batch are made again from the run's own files, and the run does not notice (issue 5, point 7)."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from observers import HoldAt
from processes import Child, fixture_d, fork_context, run_child, run_command, start_child, start_command, wait_for
from tinker_runs import final_path, run_unseen, service_run
from tinker_server import KEY, TinkerServer

from orchestrator.journal.durable import sha256_of
from orchestrator.names import CYCLE, State, batch_name
from orchestrator.testing import KillAt, outcome_of_run
from orchestrator.verify import verify

NEVER_SAVED = ("save_every=0", "rolling_save_every=0")
IN_SWAP_SAMPLER = 2 * len(CYCLE) + CYCLE.index(State.SWAP_SAMPLER)


@pytest.fixture(scope="module")
def every_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of a run that nothing disturbed: one after each batch."""
    child = fixture_d(tmp_path_factory.mktemp("every-batch"), "save_every=1")
    assert run_child(child) == 0
    return child.log_path / "local" / "run" / "weights"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A run killed once it has trained its three batches; only its first weights are saved."""
    observer = KillAt("append:after:state_entered", IN_SWAP_SAMPLER)
    child = fixture_d(tmp_path_factory.mktemp("trained"), *NEVER_SAVED, observer=observer)
    assert run_child(child) == -9
    return child


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file of a run directory but what rebuilds leave."""
    files = (path for path in folder.rglob("*") if path.is_file() and "rebuilt" not in path.parts)
    return {path: path.read_bytes() for path in files}


def told_paths(output: str) -> dict[str, Path]:
    """What the command says it has saved."""
    lines = (line.split(maxsplit=1) for line in output.splitlines()[1:])
    return {name: Path(path) for name, path in lines}


@pytest.mark.parametrize("batch", [0, 2, 3])
def test_rebuilt_weights_are_those_that_an_undisturbed_run_had(
    batch: int, trained: Child, every_batch: Path, tmp_path: Path
) -> None:
    before = contents(trained.log_path)
    arguments = ("rebuild", str(trained.log_path), "--batch", str(batch))
    code, told, errors = run_command(tmp_path / "first", *arguments)
    assert code == 0, errors
    assert f"the weights after {batch} batches are rebuilt" in told
    assert errors.count("redoing a stored train step") == batch
    assert contents(trained.log_path) == before
    assert verify(trained.log_path).passed
    saved = told_paths(told)
    [expected] = every_batch.glob(f"{batch_name(batch)}*")
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert sha256_of(saved["weights"] / name) == sha256_of(expected / name)
    assert sha256_of(saved["sampler"] / "model.safetensors") == sha256_of(expected / "model.safetensors")
    code, again, errors = run_command(tmp_path / "second", *arguments)
    assert (code, told_paths(again), "redoing" in errors) == (0, saved, False)
    assert f"the weights after {batch} batches were rebuilt before" in again


def test_another_run_starts_from_rebuilt_weights(trained: Child, tmp_path: Path) -> None:
    code, told, errors = run_command(tmp_path / "rebuild", "rebuild", str(trained.log_path), "--batch", "1")
    assert code == 0, errors
    for name, path in told_paths(told).items():
        child = fixture_d(tmp_path / name, f"load_checkpoint_path={path}", "max_batches=1")
        child.folder.mkdir()
        assert run_child(child) == 0, child.output
    model = "local/run/weights/000001-final/model.safetensors"
    one, other = (outcome_of_run(tmp_path / name / "run")["files"][model] for name in ("weights", "sampler"))
    assert one == other


def test_a_run_at_work_does_not_notice(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Held in batch 1, with the sampler of batch 0 already deleted."""
    reached, let_go = (fork_context().Semaphore(0) for _ in range(2))
    observer = HoldAt("request:before:sample", frozenset({13}), reached, let_go)
    process = start_child(fixture_d(tmp_path, observer=observer))
    assert reached.acquire(timeout=60)
    code, told, errors = run_command(tmp_path / "command", "rebuild", str(tmp_path / "run"), "--batch", "1")
    assert code == 0, errors
    let_go.release()
    assert wait_for(process) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
    assert sha256_of(told_paths(told)["sampler"] / "model.safetensors")


def test_what_cannot_be_rebuilt_is_refused_with_the_reason(trained: Child, tmp_path: Path) -> None:
    arguments = ("rebuild", str(trained.log_path), "--batch")
    code, _, told = run_command(tmp_path, *arguments, "4")
    assert (code, "has weights after 0 to 3 batches" in told) == (2, True)
    code, _, told = run_command(tmp_path / "setting", *arguments, "2", "learning_rate=0.5")
    assert (code, "learning_rate=0.5: decides what the run did before" in told) == (2, True)
    damaged = tmp_path / "run"
    shutil.copytree(trained.log_path, damaged, ignore=shutil.ignore_patterns("rebuilt"))
    (damaged / "datums" / "000001.jsonl.zst").unlink()
    code, _, told = run_command(tmp_path / "damaged", "rebuild", str(damaged), "--batch", "2")
    assert (code, "the stored datums of batch 1 are missing" in told) == (3, True)


def test_weights_are_rebuilt_on_a_service(tmp_path: Path, service: TinkerServer) -> None:
    saved = service_run(tmp_path / "saved", service, "save_every=1", "max_batches=2")
    child = service_run(tmp_path / "run", service, *NEVER_SAVED)
    assert (run_unseen(saved), run_unseen(child)) == (0, 0)
    service.forget()
    arguments = ("rebuild", str(child.log_path), "--batch", "2", "ttl_seconds=60")
    code = wait_for(start_command(tmp_path / "command", *arguments, environ={"TINKER_API_KEY": KEY}))
    assert code == 0, (tmp_path / "command" / "stderr.txt").read_text()
    told = (tmp_path / "command" / "stdout.txt").read_text().splitlines()
    weights = told[1].split()[1]
    checkpoints = service.checkpoints()
    assert checkpoints[weights] == checkpoints[final_path(saved)]
    asked = {attempt["request"] for attempt in service.log()}
    assert {"forward_backward", "optim_step"} <= asked
    assert not asked & {"asample", "sample"}
