"""The runs that `verify` and `journal --repair` are tried on, and one like them of which files are taken."""

from pathlib import Path

import pytest
from observers import SnapshotAtEveryPoint
from processes import Child, fixture_d, run_child

from orchestrator.testing import KillAt

SETTINGS = ("save_every=2", "rolling_save_every=1", "val_dataset=troubled:VAL_TASKS", "eval_every=2", "concurrency=1")
"""Every kind of checkpoint in three batches: initial, rolling after batch 0, periodic after 1, final after 2."""
CALLS_BEFORE = 2 * 2 + 8
"""Of the first evaluation and of batch 0; every rollout has two turns."""


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run with every kind of file, and in ``snapshots`` what it looked like at every point on the way."""
    folder = tmp_path_factory.mktemp("watched")
    observer = SnapshotAtEveryPoint(folder / "run", folder / "snapshots")
    child = fixture_d(folder, *SETTINGS, observer=observer)
    assert run_child(child) == 0
    return child


@pytest.fixture(scope="session")
def finished(watched: Child) -> Path:
    """The directory of the finished run; not to be written to."""
    return watched.log_path


@pytest.fixture(scope="session")
def in_rollout(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """The same run killed in Rollout of batch 1, with two of four rollouts stored."""
    child = fixture_d(
        tmp_path_factory.mktemp("in-rollout"), *SETTINGS, observer=KillAt("request:before:sample", CALLS_BEFORE + 5)
    )
    assert run_child(child) == -9
    return child


@pytest.fixture(scope="session")
def in_train_step(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """The same run killed in TrainStep of batch 1, after its datums were stored."""
    child = fixture_d(
        tmp_path_factory.mktemp("in-train-step"), *SETTINGS, observer=KillAt("request:before:forward_backward", 1)
    )
    assert run_child(child) == -9
    return child


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of another run of the same shape."""
    child = fixture_d(tmp_path_factory.mktemp("other"), *SETTINGS, "seed=7")
    assert run_child(child) == 0
    return child.log_path
