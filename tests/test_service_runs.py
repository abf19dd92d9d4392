"""Runs on a Tinker service come to what they were going to come to, however often they are killed."""

from collections import Counter
from pathlib import Path

from processes import Child
from tinker_runs import attempts, final_path, lineage, outcome, records, run_unseen, service_run
from tinker_server import TinkerServer

from orchestrator.journal.records import Kind
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt

ENTERED = "append:after:state_entered"
LOADS = ("create_model", "load_weights")
BATCH = ["forward_backward", "optim_step", "save_weights_for_sampler", "save_weights"]


def test_a_run_killed_in_each_state_stores_and_trains_what_an_undisturbed_one_does(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """H3, H4: one run, killed on entering each of the six states of batch 1."""
    for index in range(len(CYCLE)):
        occurrence = len(CYCLE) if index == 0 else 1
        assert run_unseen(service_run(tmp_path, service, observer=KillAt(ENTERED, occurrence))) == -9
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    assert outcome(child, service) == outcome(undisturbed_child, service)
    resumed_from = [record.fields["resumed_from"] for record in records(child, Kind.PROCESS_STARTED)]
    assert resumed_from == [None, *({"batch": 1, "state": state.value} for state in CYCLE)]
    loads = attempts(service, *LOADS)
    assert [load["optimizer"] for load in loads] == [None, *[True] * (len(loads) - 1)]
    assert max(Counter(str(load["model"]).partition(":")[0] for load in loads).values()) == 1, (
        "a process restored twice"
    )


def test_a_resume_restores_once_and_with_the_optimizer(tmp_path: Path, service: TinkerServer) -> None:
    """H4: killed in batch 1 of a run that began from another run's weights, without their optimizer."""
    other = service_run(tmp_path / "other", service, "max_batches=1")
    assert run_unseen(other) == 0, other.output
    initial = f"load_checkpoint_path={final_path(other)}"
    service.forget()
    in_train_step = KillAt(ENTERED, len(CYCLE) + CYCLE.index(State.TRAIN_STEP))
    child = service_run(tmp_path / "run", service, initial, observer=in_train_step)
    assert run_unseen(child) == -9
    loads = attempts(service, *LOADS)
    assert [(load["name"], load["optimizer"]) for load in loads] == [(final_path(other), False)]
    service.forget()
    assert run_unseen(service_run(tmp_path / "run", service, initial)) == 0, child.output
    owner = loads[0]["model"]
    loads = attempts(service, *LOADS)
    assert [(load["name"], load["optimizer"]) for load in loads] == [(f"tinker://{owner}/weights/000000", True)]


def test_every_batch_has_one_optimizer_step_between_its_gradient_and_its_checkpoint(
    tmp_path: Path, service: TinkerServer
) -> None:
    """H22: five batches with a checkpoint each, killed on entering batch 3."""
    settings = ("n_epochs=2", "max_batches=5", "save_every=1")
    killed = service_run(tmp_path, service, *settings, observer=KillAt(ENTERED, 3 * len(CYCLE)))
    assert run_unseen(killed) == -9
    asked = [attempt["request"] for attempt in attempts(service, *BATCH)]
    assert asked == [*BATCH[2:], *3 * BATCH]
    child = service_run(tmp_path, service, *settings)
    assert run_unseen(child) == 0, child.output
    assert lineage(service, final_path(child)) == [*BATCH[2:], *5 * BATCH]
    assert [load["name"].rpartition("/")[2] for load in attempts(service, "load_weights")] == ["000003"]
