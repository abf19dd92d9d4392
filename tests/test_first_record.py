"""A process that is killed before its run is journaled leaves nothing in the way of the next one."""

from pathlib import Path
from typing import Any

import pytest
from processes import fixture_d, run_child

from orchestrator.testing import KillAt, outcome_of_run


@pytest.mark.parametrize("killed_at", ["append:before:run_started", "append:before:process_started"])
def test_a_run_killed_around_its_first_record_is_started_by_the_same_command(
    tmp_path: Path, uninterrupted: dict[str, Any], killed_at: str
) -> None:
    """The built-in model is made before that record."""
    assert run_child(fixture_d(tmp_path, observer=KillAt(killed_at))) == -9
    assert (tmp_path / "run" / "local" / "base").exists()
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
