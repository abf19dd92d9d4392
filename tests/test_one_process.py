"""One process at a time works on a run, and a killed one gives the run back at once."""

import re
from pathlib import Path
from typing import Any

from observers import HoldAt
from processes import fixture_d, fork_context, run_child, start_child, wait_for

from orchestrator.names import CYCLE, State
from orchestrator.testing import outcome_of_run

REACH_SECONDS = 60.0


def test_a_second_process_is_refused_at_once_and_death_gives_the_lock_back(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H18: the first is held in Rollout of batch 0, let go, held again in Rollout of batch 1, and killed there."""
    reached, let_go = fork_context().Semaphore(0), fork_context().Semaphore(0)
    rollout = CYCLE.index(State.ROLLOUT)
    rollouts = frozenset({rollout, len(CYCLE) + rollout})
    first = start_child(fixture_d(tmp_path, observer=HoldAt("append:after:state_entered", rollouts, reached, let_go)))
    assert reached.acquire(timeout=REACH_SECONDS)

    second = fixture_d(tmp_path)
    assert run_child(second) == 3
    assert f"process {first.pid} on " in second.output
    took = re.search(r"exit 3 after ([0-9.]+) s", second.output)
    assert took is not None
    assert float(took[1]) < 1.0

    let_go.release()
    assert reached.acquire(timeout=REACH_SECONDS), "the first was harmed by the second"
    first.kill()
    assert wait_for(first) == -9
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
