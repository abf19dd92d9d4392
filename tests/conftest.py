"""What the whole-program tests share: a run that nothing disturbs, and one that was killed in the middle."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from processes import Child, fixture_d, run_child

from orchestrator.testing import KillAt, outcome_of_run


@pytest.fixture(scope="session")
def uninterrupted_child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run of fixture D; its directory is not to be written to."""
    child = fixture_d(tmp_path_factory.mktemp("uninterrupted"))
    assert run_child(child) == 0
    return child


@pytest.fixture(scope="session")
def uninterrupted(uninterrupted_child: Child) -> dict[str, Any]:
    """What fixture D comes to when nothing disturbs it."""
    return outcome_of_run(uninterrupted_child.log_path)


@pytest.fixture(scope="session")
def killed_child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Fixture D killed in Rollout of batch 1: two of four rollouts stored, the third between its two turns."""
    calls_in_batch_0, calls_in_batch_1 = 8, 5
    observer = KillAt("request:before:sample", calls_in_batch_0 + calls_in_batch_1)
    child = fixture_d(tmp_path_factory.mktemp("killed"), "concurrency=1", observer=observer)
    assert run_child(child) == -9
    return child


@pytest.fixture
def killed(killed_child: Child, tmp_path: Path) -> Path:
    """A folder with a copy of the killed run, to be resumed with ``fixture_d(killed)``."""
    folder = tmp_path / "killed"
    shutil.copytree(killed_child.folder, folder)
    return folder
