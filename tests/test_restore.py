"""Weights come back with their optimizer, or are redone from stored datums; what was sampled is never sampled again."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

from processes import Child, fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

WITH_OPTIMIZER = "create_training_client_from_state_with_optimizer"
WEIGHTS_ONLY = "create_training_client_from_state"
SAMPLES_OF_A_BATCH = 8


def loads(child: Child) -> dict[str, list[str]]:
    """The paths that training clients were made from, by request, over all processes."""
    found: dict[str, list[str]] = {WITH_OPTIMIZER: [], WEIGHTS_ONLY: []}
    for line in read_ledger(child.ledger):
        if line["request"] in found:
            found[line["request"]] += line["names"]
    return found


def requests_after(child: Child, process: int) -> Counter[str]:
    """What the ``process``-th process (0-based) asked of the backend."""
    lines = read_ledger(child.ledger)
    pids = list(dict.fromkeys(line["pid"] for line in lines))
    return Counter(line["request"] for line in lines if line["pid"] == pids[process])


def test_a_resume_restores_once_and_with_the_optimizer(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """H4: killed after batch 1, with a checkpoint of every batch."""
    after_batch_1 = 2 * len(CYCLE) - 1
    killed = fixture_d(tmp_path, "save_every=1", observer=KillAt("append:after:transition", after_batch_1))
    assert run_child(killed) == -9
    assert loads(killed) == {WITH_OPTIMIZER: [], WEIGHTS_ONLY: []}
    assert run_child(fixture_d(tmp_path, "save_every=1")) == 0
    assert loads(killed) == {WITH_OPTIMIZER: ["local://run/weights/000002"], WEIGHTS_ONLY: []}
    assert requests_after(killed, 1)["optim_step"] == 1
    ordered = ["forward_backward", "optim_step", "save_weights_for_sampler", "save_state"]
    asked = [line["request"] for line in read_ledger(killed.ledger) if line["request"] in ordered]
    assert asked == ordered[2:] + 3 * ordered
    assert outcome_of_run(tmp_path / "run")["results"][2][State.TRAIN_STEP] == uninterrupted["results"][2]["TrainStep"]


def test_the_initial_path_is_loaded_once_without_its_optimizer_and_never_by_a_resume(
    tmp_path: Path, uninterrupted_child: Child
) -> None:
    """H4: a fresh run from another run's checkpoint, killed in batch 1 and resumed."""
    initial = uninterrupted_child.log_path / "local" / "run" / "weights" / "000003-final"
    setting = f"load_checkpoint_path={initial}"
    train_step = len(CYCLE) + CYCLE.index(State.TRAIN_STEP)
    killed = fixture_d(tmp_path, setting, observer=KillAt("append:after:state_entered", train_step))
    assert run_child(killed) == -9
    assert loads(killed) == {WITH_OPTIMIZER: [], WEIGHTS_ONLY: [str(initial)]}
    assert run_child(fixture_d(tmp_path, setting)) == 0
    assert loads(killed) == {WITH_OPTIMIZER: ["local://run/weights/000000"], WEIGHTS_ONLY: [str(initial)]}


def test_a_late_kill_without_recent_checkpoints_costs_no_rollout_and_no_optimizer_step(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The last batch dies between gradient and step: the ones before are redone from stored datums."""
    settings = ("save_every=0", "rolling_save_every=0")
    killed = fixture_d(tmp_path, *settings, observer=KillAt("request:after:forward_backward", 2))
    assert run_child(killed) == -9
    dead = read_journal(tmp_path / "run").run
    assert (dead.batch, dead.state) == (2, State.TRAIN_STEP)
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    outcome = outcome_of_run(tmp_path / "run")
    assert outcome == uninterrupted
    assert [outcome["results"][batch][State.TRAIN_STEP]["optim_steps"] for batch in range(3)] == [1, 1, 1]
    assert loads(killed)[WITH_OPTIMIZER] == ["local://run/weights/000000"]
    assert requests_after(killed, 0)["sample"] == 3 * SAMPLES_OF_A_BATCH
    assert requests_after(killed, 1)["sample"] == 0
    assert requests_after(killed, 1)["optim_step"] == 3


def test_a_lost_checkpoint_costs_the_batches_since_the_one_before_and_a_run_without_any_is_refused(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H7: killed in the last batch; first the newest checkpoint is gone, then all of them and a batch's datums."""
    weights = tmp_path / "run" / "local" / "run" / "weights"
    train_step = 2 * len(CYCLE) + CYCLE.index(State.TRAIN_STEP)
    child = fixture_d(tmp_path, "save_every=1", observer=KillAt("append:after:state_entered", train_step))
    assert run_child(child) == -9
    shutil.rmtree(weights / "000002")
    assert run_child(fixture_d(tmp_path, "save_every=1", observer=KillAt("append:after:transition"))) == -9
    assert loads(child)[WITH_OPTIMIZER] == ["local://run/weights/000001"]
    assert requests_after(child, 1)["optim_step"] == 2
    assert "checkpoint is gone" in child.output

    datums, aside = tmp_path / "run" / "datums" / "000000.jsonl.zst", tmp_path / "aside"
    shutil.rmtree(weights)
    datums.rename(aside)
    requests = [line for line in read_ledger(child.ledger) if line["request"] != "get_weights_info_by_tinker_path"]
    assert run_child(fixture_d(tmp_path, "save_every=1")) == 3
    assert "the stored datums of batch 0 are missing" in child.output
    asked = [line for line in read_ledger(child.ledger) if line["request"] != "get_weights_info_by_tinker_path"]
    assert asked == requests

    aside.rename(datums)
    assert run_child(fixture_d(tmp_path, "save_every=1")) == 0
    assert outcome_of_run(tmp_path / "run")["results"][2][State.TRAIN_STEP] == uninterrupted["results"][2]["TrainStep"]


def test_no_rolling_checkpoint_outlives_the_final_one(tmp_path: Path) -> None:
    """Killed right after the final checkpoint is recorded, before the rolling one is deleted."""
    settings = ("save_every=0", "rolling_save_every=1")
    initial_and_two_rolling = 3
    killed = fixture_d(tmp_path, *settings, observer=KillAt("append:after:checkpoint_saved", initial_and_two_rolling))
    assert run_child(killed) == -9
    assert run_child(fixture_d(tmp_path, *settings)) == 0
    outcome = outcome_of_run(tmp_path / "run")
    assert [(name, kind) for name, _, kind, _ in outcome["checkpoints"]] == [
        ("000000", "initial"),
        ("000003-final", "final"),
    ]
    weights = tmp_path / "run" / "local" / "run" / "weights"
    assert sorted(path.name for path in weights.iterdir()) == ["000000", "000003-final"]
    view = [json.loads(line) for line in (tmp_path / "run" / "checkpoints.jsonl").read_text().splitlines()]
    assert [row["name"] for row in view] == ["000000", "000003-final"]


def test_a_kill_between_turns_repeats_no_turn(killed: Path, uninterrupted: dict[str, Any]) -> None:
    """Two rollouts of batch 1 are stored, the third has had one of its two turns."""
    assert run_child(fixture_d(killed)) == 0
    calls = Counter(
        (tuple(line["prompt"][0]), line["seed"][0])
        for line in read_ledger(killed / "ledger.jsonl")
        if line["request"] == "sample"
    )
    assert set(calls.values()) == {1}
    assert calls.total() == 3 * SAMPLES_OF_A_BATCH
    assert outcome_of_run(killed / "run") == uninterrupted


def test_a_sampler_that_is_gone_is_saved_again_from_the_weights(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    rollout_of_batch_1 = len(CYCLE) + CYCLE.index(State.ROLLOUT)
    killed = fixture_d(tmp_path, observer=KillAt("append:after:state_entered", rollout_of_batch_1))
    assert run_child(killed) == -9
    shutil.rmtree(killed.log_path / "local" / "run" / "sampler_weights" / "000001")
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
