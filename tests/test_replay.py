"""One train step repeated: as it was it gives what it gave, with other settings it says what is different (issue 5)."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from processes import Child, fixture_d, run_child, run_command
from test_rebuild import contents

from orchestrator.cli import main
from orchestrator.journal.log import read_journal
from orchestrator.names import State

BATCH = 1
SETTINGS = ("num_substeps=2", "num_epochs=2", "rolling_save_every=0", "val_dataset=troubled:VAL_TASKS")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run of four optimizer steps a batch; its directory is not to be written to."""
    child = fixture_d(tmp_path_factory.mktemp("trained"), *SETTINGS)
    assert run_child(child) == 0
    return child


def replayed(child: Child, folder: Path, *settings: str, batch: int = BATCH) -> str:
    """What the command prints; it has left the run as it was."""
    before = contents(child.log_path)
    code, told, errors = run_command(folder, "replay", str(child.log_path), "--batch", str(batch), *settings)
    assert code == 0, errors
    assert contents(child.log_path) == before
    return told


def rows(told: str) -> Mapping[str, tuple[str, str, str]]:
    """The table of the step as a whole: original, replay and difference by name."""
    cells = [[cell.strip() for cell in line.strip("│┃").split("│")] for line in told.splitlines() if "│" in line]
    whole = [row for row in cells if len(row) == 4 and not row[0].isdecimal()]
    return {name: (one, other, difference) for name, one, other, difference in whole}


@pytest.mark.parametrize("batch", [0, 2])
def test_with_nothing_changed_nothing_differs(batch: int, trained: Child, tmp_path: Path) -> None:
    """Not a bit, and the step gives what the journal says it gave."""
    told = replayed(trained, tmp_path, batch=batch)
    assert told.splitlines()[-1] == "no difference, bit for bit"
    assert "gives other numbers than were journaled" not in told
    assert {difference for _, _, difference in rows(told).values()} == {"same"}
    facts = read_journal(trained.log_path).run.batches[batch].results[State.TRAIN_STEP]
    names = ("optim/kl_sample_train_v1", "optim/entropy", "unclipped_grad_l2:mean", "optim/lr")
    for name in names:
        assert rows(told)[name][:2] == (f"{facts['metrics'][name]:.6g}",) * 2
    steps = [line for line in told.splitlines() if re.match(r"[│┃] *[0-3] *│", line)]
    assert len(steps) == facts["optim_steps"] == 4
    assert all(line.count("| same") == 3 for line in steps), "kl, loss and gradient of each step"


def test_another_loss_and_rate_show_where_they_differ(trained: Child, tmp_path: Path) -> None:
    """The first gradient is the same, since at the sampled weights both losses have it; what follows is not."""
    told = replayed(trained, tmp_path, "learning_rate=0.01", "loss_fn=ppo")
    assert told.splitlines()[-1] == "it differs"
    table = rows(told)
    assert table["optim/lr"] == ("0.001", "0.01", "+0.009")
    assert table["train/datums"][2] == "same"
    assert table["optim/kl_sample_train_v1"][2] != "same"
    shift = table["logprob shift: mean, advantage > 0"]
    assert 0 < float(shift[0]) < float(shift[1])
    assert re.search(r"logprobs after it: \S+ apart in the mean, \S+ at most", told)
    first, second = [line for line in told.splitlines() if re.match(r"[│┃] *[01] *│", line)]
    assert first.count("| same") == 3
    assert second.count("| same") < 3


def test_settings_that_change_the_datums_say_so(trained: Child, tmp_path: Path) -> None:
    """With a KL penalty the advantages are others; no token is sampled for it."""
    told = replayed(trained, tmp_path, "kl_penalty_coef=0.5")
    assert re.search(r"datums: \d+ are not the same in both", told)
    table = rows(told)
    assert table["optim/kl_policy_base"][0] == "-"


def test_what_decides_the_rollouts_cannot_be_changed(trained: Child, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ("temperature=0.5", "batch_size=1", "local.num_threads=2"):
        assert main(["replay", str(trained.log_path), "--batch", "1", setting]) == 2
        assert f"{setting}: decides what the run did before that" in capsys.readouterr().err
    assert main(["replay", str(trained.log_path), "--batch", "3"]) == 2
    assert "has not trained that batch yet" in capsys.readouterr().err
