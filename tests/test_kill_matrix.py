"""A kill at every kind of point in every state, recovery included, changes nothing in the end.

The slice that CI can afford of ``make chaos``: of all points of a run, each kind once in each state.
"""

from pathlib import Path
from typing import Any

import pytest
from observers import KillAtNew
from processes import fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import CYCLE
from orchestrator.testing import outcome_of_run
from orchestrator.verify import verify

SETTINGS = ("save_every=2", "rolling_save_every=1", "val_dataset=troubled:VAL_TASKS", "eval_every=2", "concurrency=1")
"""Every kind of checkpoint in three batches: initial, rolling after batch 0, periodic after 1, final after 2."""
SIDES = ("append:before:", "append:after:", "request:before:", "request:after:", "write:middle:")
PARTS = {"journal.jsonl", "rollouts", "turns", "datums", "metrics.jsonl", "checkpoints.jsonl", "config.json", "local"}
"""Of the run directory, those that are written durably."""
REQUESTS = {
    "create_lora_training_client",
    "create_training_client_from_state_with_optimizer",
    "create_sampling_client",
    "sample",
    "forward_backward",
    "optim_step",
    "save_weights_for_sampler",
    "save_state",
    "get_weights_info_by_tinker_path",
    "delete_checkpoint_from_tinker_path",
}
DEEPEST_RECOVERY = 5
"""Kills in a row, at least, that each fell before the machine had moved again."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run comes to when nothing disturbs it."""
    child = fixture_d(tmp_path_factory.mktemp("undisturbed"), *SETTINGS)
    assert run_child(child) == 0
    return outcome_of_run(child.log_path)


def test_no_point_of_any_state_is_a_place_where_a_kill_changes_the_end(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Each process is killed at the first point that is new in its state, until a whole run has none that is new."""
    tried: dict[tuple[str, str], int] = {}
    deepest = kills_since_progress = runs = 0
    while True:
        folder = tmp_path / f"run-{runs}"
        folder.mkdir()
        kills, records = 0, 0
        while run_child(fixture_d(folder, *SETTINGS, observer=kill_at_new(folder, tried))) == -9:
            state, point = (folder / "point.txt").read_text().split()
            tried[state, point] = runs
            kills += 1
            journaled = len(transitions(folder))
            kills_since_progress = kills_since_progress + 1 if journaled == records else 0
            records = journaled
            deepest = max(deepest, kills_since_progress)
        assert "exit 0 " in fixture_d(folder).output.splitlines()[-1], fixture_d(folder).output
        assert outcome_of_run(folder / "run") == undisturbed, f"after kills at {tried}"
        assert verify(folder / "run").passed, verify(folder / "run").lines()
        runs += 1
        if kills == 0:
            break
    struck = {
        prefix: {point.removeprefix(prefix) for _, point in tried if point.startswith(prefix)} for prefix in SIDES
    }
    assert struck["write:middle:"] == PARTS, "a part of the run directory is not written through the run's disk"
    assert struck["request:before:"] >= REQUESTS
    assert struck["request:after:"] >= REQUESTS
    # A client is lost, and a restore probed, on a service only or when asked for: test_lost_clients and test_doctor.
    kinds = {kind.value for kind in Kind} - {Kind.CLIENT_LOST, Kind.OPTIMIZER_PROBED}
    assert struck["append:before:"] == struck["append:after:"] == kinds
    assert {state for state, _ in tried} == {"start-up", "between-states", *CYCLE}
    assert deepest >= DEEPEST_RECOVERY


def kill_at_new(folder: Path, tried: dict[tuple[str, str], int]) -> KillAtNew:
    """Told which state the next process begins in."""
    state = read_journal(folder / "run").run.state
    return KillAtNew(frozenset(tried), state, folder / "point.txt")


def transitions(folder: Path) -> list[Any]:
    """The moves that the journal has."""
    return [record for record in read_journal(folder / "run").records if record.kind == "transition"]
