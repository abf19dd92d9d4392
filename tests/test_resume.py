"""Whole runs on the embedded backend, killed for real at named points and resumed with the same command."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import Child, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.testing import outcome_of_run, read_ledger

FIXTURE_D = (
    "recipe=none",
    "agent=letters:agent",
    "train_dataset=letters:TASKS",
    "model_name=tiny",
    "lora_rank=0",
    "batch_size=2",
    "group_size=2",
    "seed=42",
    "max_tokens=4",
    "learning_rate=0.001",
    "log_path=run",
)
BATCHES = [["t3", "t1"], ["t2", "t4"], ["t0", "t5"]]


def child(folder: Path, *settings: str, **kill: Any) -> Child:
    """A run of fixture D with further settings."""
    return Child((*FIXTURE_D, *settings), folder, **kill)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run of fixture D comes to when nothing disturbs it."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    assert run_child(child(folder)) == 0
    return outcome_of_run(folder / "run")


def samples_of_finished_rollouts(folder: Path) -> Counter[tuple[tuple[int, ...], int]]:
    """How often each sample call was made; its prompt and seed identify it."""
    lines = [line for line in read_ledger(folder / "ledger.jsonl") if line["request"] == "sample"]
    return Counter((tuple(line["prompt"][0]), line["seed"][0]) for line in lines)


@pytest.mark.parametrize("state", CYCLE)
def test_a_kill_on_entering_any_state_changes_nothing_in_the_end(
    state: State, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H3: the first state after the resume is the killed one, and the run comes to the same."""
    occurrence = len(CYCLE) + CYCLE.index(state)
    assert run_child(child(tmp_path, kill_point="append:after:state_entered", kill_occurrence=occurrence)) == -9
    killed = read_journal(tmp_path / "run").run
    assert (killed.batch, killed.state) == (1, state)
    assert run_child(child(tmp_path)) == 0
    entered = [record for record in read_journal(tmp_path / "run").records if record.kind == "state_entered"]
    resumed = entered[occurrence + 1].fields
    assert (resumed["batch"], resumed["state"]) == (1, state)
    outcome = outcome_of_run(tmp_path / "run")
    assert outcome == uninterrupted
    assert [row["step"] for row in outcome["metrics"]][:3] == [0, 1, 2]
    steps = [outcome["results"][batch][State.TRAIN_STEP]["optim_steps"] for batch in range(3)]
    assert steps == [1, 1, 1]
