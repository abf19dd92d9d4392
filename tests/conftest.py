"""What the whole-program tests share: the run that nothing disturbs."""

from typing import Any

import pytest
from processes import Child, fixture_d, run_child

from orchestrator.testing import outcome_of_run


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
