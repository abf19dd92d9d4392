"""Whole runs on the embedded backend, killed for real at named points and resumed with the same command."""

import stat
from pathlib import Path
from typing import Any

import pytest
from processes import Child, fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt, outcome_of_run


@pytest.mark.parametrize("state", CYCLE)
def test_a_kill_on_entering_any_state_changes_nothing_in_the_end(
    state: State, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H3: the first state after the resume is the killed one, and the run comes to the same."""
    occurrence = len(CYCLE) + CYCLE.index(state)
    assert run_child(fixture_d(tmp_path, observer=KillAt("append:after:state_entered", occurrence))) == -9
    killed = read_journal(tmp_path / "run").run
    assert (killed.batch, killed.state) == (1, state)
    assert run_child(fixture_d(tmp_path)) == 0
    entered = [record for record in read_journal(tmp_path / "run").records if record.kind == "state_entered"]
    resumed = entered[occurrence + 1].fields
    assert (resumed["batch"], resumed["state"]) == (1, state)
    outcome = outcome_of_run(tmp_path / "run")
    assert outcome == uninterrupted
    assert [row["step"] for row in outcome["metrics"]] == [0, 1, 2]
    steps = [outcome["results"][batch][State.TRAIN_STEP]["optim_steps"] for batch in range(3)]
    assert steps == [1, 1, 1]


def test_every_stored_file_is_its_owners_alone(uninterrupted_child: Child) -> None:
    assert stat.S_IMODE(uninterrupted_child.log_path.stat().st_mode) == 0o700
    files = [path for path in uninterrupted_child.log_path.rglob("*") if path.is_file()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {path.name: 0o600 for path in files}
