"""A kill on either side of every kind of request and record, all of them in one run."""

from pathlib import Path
from typing import Any

import pytest
from processes import Child, fixture_d, run_child

from orchestrator.names import CYCLE
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

SETTINGS = ("save_every=2", "rolling_save_every=1", "val_dataset=troubled:VAL_TASKS", "eval_every=2", "concurrency=1")
"""Every kind of checkpoint in three batches: initial, rolling after batch 0, periodic after 1, final after 2."""
REQUESTS_TO_BEGIN = ("create_lora_training_client", "save_weights_for_sampler", "save_state")
REQUESTS_ON_THE_WAY = (
    "create_sampling_client",
    "sample",
    "forward_backward",
    "optim_step",
    "create_training_client_from_state_with_optimizer",
    "delete_checkpoint_from_tinker_path",
)
REQUESTS_TO_END = ("save_weights_for_sampler", "save_state")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to when nothing disturbs it."""
    child = fixture_d(tmp_path_factory.mktemp("undisturbed"), *SETTINGS)
    assert run_child(child) == 0
    return outcome_of_run(child.log_path)


def test_no_side_of_any_request_is_a_place_where_a_kill_changes_the_end(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Each process is killed at the next point; what it did before that is what the next one finds."""
    points = [f"request:{side}:{request}" for request in REQUESTS_TO_BEGIN for side in ("before", "after")]
    points += ["append:before:checkpoint_saved", "append:after:checkpoint_saved"]
    points += [f"request:{side}:{request}" for request in REQUESTS_ON_THE_WAY for side in ("before", "after")]
    points += ["append:before:checkpoint_lost", "append:after:checkpoint_lost"]
    points += [f"request:{side}:{request}" for request in REQUESTS_TO_END for side in ("before", "after")]
    killed_at = run_through(tmp_path, points)
    assert killed_at == points
    assert outcome_of_run(tmp_path / "run") == undisturbed


def test_no_side_of_any_transition_is_a_place_where_a_kill_changes_the_end(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Every state of batch 0 is done, not journaled, and done again in the next process."""
    points = ["append:before:transition", "append:after:transition"] * len(CYCLE)
    points += ["append:before:process_started", "append:after:process_started"]
    assert run_through(tmp_path, points) == points
    assert outcome_of_run(tmp_path / "run") == undisturbed
    requests = [line["request"] for line in read_ledger(tmp_path / "ledger.jsonl")]
    assert requests.count("create_lora_training_client") == 1


def run_through(folder: Path, points: list[str]) -> list[str]:
    """Kills a process at each point in turn, then runs to the end; the points at which one was killed."""
    killed_at = []
    for point in points:
        child: Child = fixture_d(folder, *SETTINGS, observer=KillAt(point))
        if run_child(child) == -9:
            killed_at.append(point)
    assert run_child(fixture_d(folder, *SETTINGS)) == 0
    return killed_at
