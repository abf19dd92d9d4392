"""The contract and whole runs against a server that others wrote, over HTTP with the real SDK; ``make test-skyrl``."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import Child
from skyrl.conftest import SkyRL
from tinker_runs import log_lines, records, run_unseen, service_run
from tinker_server import KEY

from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt, Observer, outcome_of_run, watch_nothing

ENTERED = "append:after:state_entered"
NUM_BATCHES = 3
SETTINGS = ("val_dataset=letters:TASKS", "eval_every=2", "eval_group_size=1")
CONTRACT = Path(__file__).parent.parent / "contract"


def skyrl_run(folder: Path, skyrl: SkyRL, *settings: str, observer: Observer = watch_nothing) -> Child:
    return service_run(folder, skyrl.server, *SETTINGS, *settings, observer=observer)


def check_finished(child: Child) -> None:
    """Every batch was trained with one step, every evaluation made and every row written, once."""
    found: dict[str, Any] = outcome_of_run(child.log_path)
    assert found["position"] == (NUM_BATCHES, State.FINISHED.value, True)
    results = found["results"]
    assert [results[batch][State.TRAIN_STEP]["optim_steps"] for batch in range(NUM_BATCHES)] == [1] * NUM_BATCHES
    evaluated = [batch for batch in results if results[batch][State.MAYBE_EVALUATE]["evaluated"]]
    assert evaluated == [0, 2, NUM_BATCHES]
    assert [row["progress/batch"] for row in found["metrics"]] == list(range(NUM_BATCHES + 1))
    for row in found["metrics"][:NUM_BATCHES]:
        # What was sampled is scored alike by the weights that are trained: those are the right ones, redone or not.
        assert abs(row["optim/kl_sample_train_v1"]) < 1e-3, row
    assert [name for name, *_ in found["checkpoints"]][-1] == f"{NUM_BATCHES:06}-final"


def test_the_contract_is_kept(skyrl: SkyRL) -> None:
    command = [sys.executable, "-m", "pytest", str(CONTRACT), "-v", "--durations=5"]
    command += [f"--base-url={skyrl.server.url}", f"--base-model={skyrl.model}"]
    assert subprocess.run(command, env={**os.environ, "TINKER_API_KEY": KEY}, check=False).returncode == 0


def test_a_run_trains_evaluates_and_saves(tmp_path: Path, skyrl: SkyRL) -> None:
    child = skyrl_run(tmp_path, skyrl, "rolling_save_every=1")
    assert run_unseen(child) == 0, child.output
    check_finished(child)
    kinds = [record.fields["checkpoint_kind"] for record in records(child, Kind.CHECKPOINT_SAVED)]
    assert kinds == ["initial", "rolling", "rolling", "final"]
    assert [record.fields["name"] for record in records(child, Kind.CHECKPOINT_LOST)] == [
        "000001-rolling",
        "000002-rolling",
    ]


@pytest.mark.parametrize("server_too", [False, True], ids=["the run", "the run and the server"])
def test_a_killed_run_resumes_and_redoes_its_steps(tmp_path: Path, skyrl: SkyRL, *, server_too: bool) -> None:
    """SIGKILL in Rollout and in TrainStep of batch 1, where the only checkpoint is that of batch 0.

    What a server forgets when it dies is the sampler, which is then saved again from the redone weights.
    """
    for state, occurrence in ((State.ROLLOUT, len(CYCLE) + CYCLE.index(State.ROLLOUT)), (State.TRAIN_STEP, 1)):
        killed = skyrl_run(tmp_path, skyrl, observer=KillAt(ENTERED, occurrence))
        assert run_unseen(killed) == -9
        run = read_journal(killed.log_path).run
        assert (run.batch, run.state) == (1, state)
        if server_too:
            skyrl.kill()
            skyrl.start()
    child = skyrl_run(tmp_path, skyrl)
    assert run_unseen(child) == 0, child.output
    check_finished(child)
    redone = [line["redone_batch"] for line in log_lines(child, "redoing a stored train step")]
    gone = log_lines(child, "the sampler is gone, saving it again from the weights")
    assert redone == ([0, 0] if server_too else [0])
    assert bool(gone) is server_too
