"""A lost training client is made again from checkpoint and stored batches, in the same process, and journaled."""

from pathlib import Path

import pytest
from processes import Child
from tinker_runs import attempts, final_path, lineage, outcome, records, run_unseen, service_run
from tinker_server import Fault, TinkerServer

from orchestrator.cli import main
from orchestrator.journal.records import Kind
from orchestrator.names import State
from orchestrator.testing import KillAt
from orchestrator.verify import verify

ONE_IN_EACH_PLACE = (
    Fault("save_weights", "fail", category="server"),  # of the initial checkpoint
    Fault("forward_backward", "fail", category="server"),  # batch 0's; its optimizer step is applied all the same
    Fault("optim_step", "forget", after=2),  # batch 1's: applied, and nobody will know
    Fault("save_weights_for_sampler", "fail", after=3, category="unknown"),  # batch 1's
    Fault("forward_backward", "answer", status=404, after=6),  # batch 2's: the service has no such model
    Fault("save_weights", "forget", after=1),  # of the final checkpoint: saved, and nobody will know
)
PLACES = [
    (0, State.PUBLISH_MODEL),
    (0, State.TRAIN_STEP),
    (1, State.TRAIN_STEP),
    (1, State.SWAP_SAMPLER),
    (2, State.TRAIN_STEP),
    (2, State.SWAP_SAMPLER),
]


def lost(child: Child) -> list[tuple[int, str]]:
    """Where training clients were lost."""
    return [(record.fields["batch"], record.fields["state"]) for record in records(child, Kind.CLIENT_LOST)]


def test_a_lost_training_client_is_made_again_without_a_restart_wherever_it_is_lost(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """Whatever the lost ones did, each batch is in the surviving weights once."""
    service.plan(*ONE_IN_EACH_PLACE)
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    assert lost(child) == PLACES
    assert len(records(child, Kind.PROCESS_STARTED)) == 1
    assert outcome(child, service) == outcome(undisturbed_child, service)
    trained = [request for request in lineage(service, final_path(child)) if not request.startswith("save")]
    assert trained == 3 * ["forward_backward", "optim_step"]
    # Before there is a checkpoint a new client is made, and then it is restored from the newest.
    made = attempts(service, "create_model", "load_weights")
    assert [attempt["optimizer"] for attempt in made] == [None, None, True, True, True, True, True]
    assert verify(child.log_path).lines()[-1] == "PASS"


def test_the_record_of_a_loss_says_what_was_asked_and_why_it_failed_and_quotes_nobody(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed right after it is journaled: the resume goes on as the process would have."""
    service.plan(Fault("optim_step", "fail_applied", after=1, category="server"))
    child = service_run(tmp_path, service, observer=KillAt("append:after:client_lost"))
    assert run_unseen(child) == -9
    [record] = records(child, Kind.CLIENT_LOST)
    assert record.fields["reason"].startswith("train step of batch 1: RequestFailedError at ")
    assert "as planned" not in child.output + record.fields["reason"]
    assert main(["status", str(child.log_path)]) == 0
    told = capsys.readouterr().out
    assert "this batch and state failed 1 time" in told
    assert "1 training client lost and made again" in told
    assert main(["journal", str(child.log_path)]) == 0
    assert "training client lost in TrainStep, made again: train step of batch 1: " in capsys.readouterr().out
    assert run_unseen(service_run(tmp_path, service)) == 0
    assert outcome(child, service) == outcome(undisturbed_child, service)
