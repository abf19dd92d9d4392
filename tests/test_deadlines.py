"""Nothing waits for ever: a state, or a reply, that does not come ends the process and not the run."""

from pathlib import Path
from typing import Any

import pytest
from observers import FailAt
from processes import Child, fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.testing import outcome_of_run


@pytest.mark.parametrize(
    ("deadline", "request_name", "state"),
    [
        ("backend_timeout_seconds", "optim_step", State.TRAIN_STEP),
        ("backend_timeout_seconds", "create_sampling_client", State.PUBLISH_MODEL),
        ("state_timeout_seconds", "create_lora_training_client", State.PUBLISH_MODEL),
    ],
)
def test_a_reply_that_never_comes_ends_the_state_at_its_deadline_and_the_run_goes_on(
    deadline: str, request_name: str, state: State, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H32, in process."""
    hung = fixture_d(tmp_path, f"{deadline}=2")
    assert run_child(Child(hung.settings, hung.folder, unanswered=request_name), timeout_seconds=60) == 1
    assert f"batch 0, state {state}: " in hung.output
    assert f"{deadline}=2" in hung.output
    run = read_journal(hung.log_path).run
    assert (run.batch, run.state, run.failures) == (0, state, 1)
    assert run.last_stop is not None
    assert run.last_stop.reason == "failed"
    if request_name == "optim_step":  # the others are no different from here on
        assert run_child(fixture_d(tmp_path)) == 0
        assert outcome_of_run(tmp_path / "run") == uninterrupted


def test_agents_that_hang_end_the_state_at_its_deadline(tmp_path: Path) -> None:
    settings = ("agent=troubled:hanging", "state_timeout_seconds=2")
    child = fixture_d(tmp_path, *settings)
    assert run_child(child, timeout_seconds=30) == 1
    assert "batch 0, state Rollout: not done after state_timeout_seconds=2" in child.output
    run = read_journal(child.log_path).run
    assert (run.state, run.failures) == (State.ROLLOUT, 1)


def test_failures_count_for_their_own_batch_and_state_only(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Two in TrainStep, then three in SwapSampler: the third of these is the one too many, and can be allowed."""
    gradient, sampler = "request:before:forward_backward", "request:before:save_weights_for_sampler"
    places = []
    for point in (gradient, gradient, sampler, sampler, "append:before:transition"):
        assert run_child(fixture_d(tmp_path, observer=FailAt(point))) == 1
        run = read_journal(tmp_path / "run").run
        places.append((run.batch, run.state, run.failures))
    swapped, trained = State.SWAP_SAMPLER, State.TRAIN_STEP
    assert places == [(0, trained, 1), (0, trained, 2), (0, swapped, 1), (0, swapped, 2), (0, swapped, 3)]
    refused = fixture_d(tmp_path)
    assert run_child(refused) == 3
    assert "SwapSampler of batch 0 failed 3 times" in refused.output
    assert "max_attempts=4" in refused.output
    assert run_child(fixture_d(tmp_path, "max_attempts=4")) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted
