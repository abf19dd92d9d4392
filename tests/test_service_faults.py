"""What goes wrong at a Tinker service is tried again, or stops the run where it can be resumed."""

import signal
import socket
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from processes import Child, start_child, wait_for
from tinker_runs import attempts, final_path, lineage, log_lines, outcome, records, run_unseen, service_run
from tinker_server import KEY, Fault, TinkerServer

from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt

ENTERED = "append:after:state_entered"
TRIED_AGAIN = "the service did not carry out a request, which is tried again"
ADOPTED = "adopted what was saved before under this name"
GONE = "checkpoint is gone, trying an older one"
SAVES = ("save_weights_for_sampler", "save_weights")
STEPS = ("forward_backward", "optim_step")


@pytest.mark.parametrize("action", ["drop", "fail_applied"])
def test_a_save_that_was_applied_and_not_confirmed_is_adopted(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child, action: Literal["drop", "fail_applied"]
) -> None:
    """H5: of a sampler and a state the reply is lost and the retry answered 409, or the future tells of an error."""
    service.plan(Fault("save_weights_for_sampler", action, after=2), Fault("save_weights", action, after=1))
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    assert outcome(child, service) == outcome(undisturbed_child, service)
    saves = attempts(service, *SAVES)
    applied = Counter((save["request"], save["name"]) for save in saves if save["applied"])
    assert set(applied.values()) == {1}
    taken = {(save["request"], save["name"]) for save in saves if save["status"] == 409}
    assert taken == ({(SAVES[0], "000002"), (SAVES[1], "000003-final")} if action == "drop" else set())
    assert len(log_lines(child, ADOPTED)) == 2
    recorded = [record.fields for record in records(child, Kind.CHECKPOINT_SAVED)]
    assert [fields["name"] for fields in recorded] == ["000000", "000003-final"]
    assert {fields["state_path"] for fields in recorded} <= set(service.checkpoints())


def test_the_newest_checkpoint_that_lives_is_restored_and_the_batches_since_are_redone(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """H7: of the checkpoints of batches 0, 1 and 2, one has expired and one goes while it is being loaded."""
    killed = service_run(tmp_path, service, "save_every=1", observer=KillAt(ENTERED, 2 * len(CYCLE) + 3))
    assert run_unseen(killed) == -9
    paths = [checkpoint.state_path for checkpoint in read_journal(killed.log_path).run.checkpoints]
    service.expire(paths[2])
    service.plan(Fault("load_weights", "answer", status=404))
    child = service_run(tmp_path, service, "save_every=1")
    assert run_unseen(child) == 0, child.output
    assert [line["checkpoint"] for line in log_lines(child, GONE)] == ["000002", "000001"]
    assert [load["name"] for load in attempts(service, "load_weights")] == [paths[1], paths[0]]
    assert [line["redone_batch"] for line in log_lines(child, "redoing a stored train step")] == [0, 1]
    found, expected = outcome(child, service), outcome(undisturbed_child, service)
    assert {name: found[name] for name in ("files", "metrics", "weights")} == {
        name: expected[name] for name in ("files", "metrics", "weights")
    }


def test_a_sampler_that_has_expired_is_saved_again_from_the_weights(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """Killed in Rollout of batch 1, and taken up after the lifetime of what it was sampling from."""
    killed = service_run(tmp_path, service, observer=KillAt(ENTERED, len(CYCLE) + CYCLE.index(State.ROLLOUT)))
    assert run_unseen(killed) == -9
    sampler_path = read_journal(killed.log_path).run.sampler_path
    assert sampler_path is not None
    service.expire(sampler_path)
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    gone = log_lines(child, "the sampler is gone, saving it again from the weights")
    assert [line["sampler_path"] for line in gone] == [sampler_path]
    assert outcome(child, service) == outcome(undisturbed_child, service)


def test_a_run_whose_checkpoints_are_all_gone_is_refused_and_never_begun_again(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """H7: it began from another run's weights, so there is no base to redo it from."""
    initial = f"load_checkpoint_path={final_path(undisturbed_child)}"
    killed = service_run(tmp_path, service, initial, observer=KillAt(ENTERED, len(CYCLE)))
    assert run_unseen(killed) == -9
    service.expire(final_path(killed))
    service.forget()
    child = service_run(tmp_path, service, initial)
    assert run_unseen(child) == 3
    assert "no checkpoint is alive" in child.output
    assert not attempts(service, "create_model", "load_weights", "asample", "forward_backward")
    run = read_journal(child.log_path).run
    assert (run.batch, run.state) == (1, State.PUBLISH_MODEL)


@pytest.mark.parametrize("request_name", SAVES)
def test_half_a_checkpoint_is_never_relied_on(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child, request_name: str
) -> None:
    """H23: after batch 1 one of the two saves fails; the resume restores the checkpoint before and redoes."""
    service.plan(Fault(request_name, "fail", after=2))
    child = service_run(tmp_path, service, "save_every=1")
    assert run_unseen(child) == 1
    run = read_journal(child.log_path).run
    assert (run.batch, run.state) == (1, State.SWAP_SAMPLER)
    assert [checkpoint.batch for checkpoint in run.checkpoints] == [0, 1]
    assert State.SWAP_SAMPLER not in run.batches[1].results
    assert run_unseen(child) == 0, child.output
    assert [load["name"].rpartition("/")[2] for load in attempts(service, "load_weights")] == ["000001"]
    assert lineage(service, final_path(child)).count("optim_step") == 3
    assert outcome(child, service)["weights"] == outcome(undisturbed_child, service)["weights"]


def test_what_a_service_refuses_for_now_is_tried_again_and_the_wait_is_told(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """H31: 503 twice in batch 0; 429 with Retry-After 1 in batch 1; sampling and a save that are refused once."""
    service.plan(
        Fault("forward_backward", "answer", status=503, times=2),
        Fault("forward_backward", "answer", status=429, after=1, retry_after_seconds=1.0),
        Fault("asample", "answer", status=429),
        Fault("save_weights", "answer", status=500, after=1),
    )
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    steps = attempts(service, "forward_backward")
    assert [(step["status"], step["applied"]) for step in steps] == [
        *[(503, False)] * 2, (200, True), (429, False), *[(200, True)] * 2
    ]  # fmt: skip
    assert len({step["seq_id"] for step in steps}) == 3
    told = [(line["request"], line["answer"][:3], line.get("wait_seconds")) for line in log_lines(child, TRIED_AGAIN)]
    assert ("POST /api/v1/forward_backward", "429", 1.0) in told
    told_of = {(request.rpartition("/")[2], answer) for request, answer, _ in told}
    assert told_of == {
        ("forward_backward", "503"), ("forward_backward", "429"), ("asample", "429"), ("save_weights", "500")
    }  # fmt: skip
    assert steps[4]["at"] - steps[3]["at"] >= 1.0
    assert "429" in child.output
    assert outcome(child, service) == outcome(undisturbed_child, service)


def test_a_step_is_applied_once_however_often_it_has_to_be_asked_for(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """Applied and not confirmed, late, out of order for a moment, and an account that is out of credit for a moment."""
    service.plan(
        Fault("forward_backward", "drop"),
        Fault("forward_backward", "late"),
        Fault("forward_backward", "answer", status=402),
        Fault("optim_step", "drop"),
        Fault("optim_step", "answer", status=409),
        Fault("optim_step", "late"),
    )
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    applied = Counter((step["request"], step["seq_id"]) for step in attempts(service, *STEPS) if step["applied"])
    assert set(applied.values()) == {1}
    assert lineage(service, final_path(child)).count("optim_step") == 3
    assert not records(child, Kind.CLIENT_LOST)
    told = {(line["request"].rpartition("/")[2], line["answer"][:3]) for line in log_lines(child, TRIED_AGAIN)}
    assert told >= {("forward_backward", "402"), ("optim_step", "409")}
    assert outcome(child, service) == outcome(undisturbed_child, service)


@pytest.mark.parametrize("status", [400, 401])
def test_what_a_service_refuses_for_good_stops_the_run_at_once_and_it_resumes(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child, status: int
) -> None:
    """H31: forward_backward is refused; a key that was withdrawn is no reason to make another client."""
    service.plan(Fault("forward_backward", "answer", status=status))
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 1
    assert "batch 0, state TrainStep" in child.output
    assert str(status) in child.output
    assert [(step["status"], step["applied"]) for step in attempts(service, *STEPS)][:1] == [(status, False)]
    assert not records(child, Kind.CLIENT_LOST)
    assert not any(step["applied"] for step in attempts(service, *STEPS))
    assert run_unseen(child) == 0, child.output
    assert outcome(child, service) == outcome(undisturbed_child, service)


def test_a_result_that_never_comes_stops_the_run_and_it_resumes(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """H32: the future of the second batch's optimizer step never resolves."""
    service.plan(Fault("optim_step", "never", after=1))
    child = service_run(tmp_path, service, "backend_timeout_seconds=2")
    assert run_unseen(child) == 1
    assert "batch 1, state TrainStep: train step of batch 1: no reply within backend_timeout_seconds=2" in child.output
    resumed = service_run(tmp_path, service)
    assert run_unseen(resumed) == 0, resumed.output
    assert outcome(resumed, service) == outcome(undisturbed_child, service)


@pytest.mark.parametrize(
    ("key", "session_status", "exit_code", "message"),
    [
        ("tml-another-key", 200, 2, "refuses the key (401)"),
        ("another-key", 200, 2, "must start with the 'tml-' prefix"),
        (KEY, 400, 1, "refused as planned"),
    ],
)
def test_a_service_that_lets_nobody_in_leaves_no_run_behind(
    tmp_path: Path, service: TinkerServer, key: str, session_status: int, exit_code: int, message: str
) -> None:
    if session_status != 200:
        service.plan(Fault("create_session", "answer", status=session_status))
    child = replace(service_run(tmp_path, service), environ={"TINKER_API_KEY": key})
    assert run_unseen(child) == exit_code
    assert message in child.output
    assert key not in child.output
    assert not read_journal(child.log_path).records


def test_a_service_that_does_not_answer_holds_up_neither_deadline_nor_signal(
    tmp_path: Path, service: TinkerServer
) -> None:
    """The connection is taken and nothing is said on it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"base_url=http://127.0.0.1:{silent.getsockname()[1]}"
        late = service_run(tmp_path / "late", service, address, "backend_timeout_seconds=1")
        assert run_unseen(late) == 1
        assert "connecting to http://127.0.0.1" in late.output
        stopped = service_run(tmp_path / "stopped", service, address)
        process = start_child(stopped)
        silent.accept()
        silent.accept()
        process.terminate()
        assert wait_for(process) == 128 + signal.SIGTERM
    assert not read_journal(stopped.log_path).records
