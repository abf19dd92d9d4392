"""Every batch, and the final evaluation, has one row in metrics.jsonl and in every tracker, whatever was killed."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import AGENTS, Child, fixture_d, fork_context, run_child
from tracker_runs import TRACKED, TRACKERS, KillOnceTracked, KillUntracked, run_tracked
from tracker_views import View, metric_view, tensorboard_view, trackio_view, wandb_view

from orchestrator.journal.log import read_journal
from orchestrator.names import CYCLE, State
from orchestrator.reporting.metrics import MetricRows
from orchestrator.reporting.trackers.feed import tracker_run_id
from orchestrator.testing import KillAt, outcome_of_run

EVALUATED = ("val_dataset=troubled:VAL_TASKS",)
LOG = CYCLE.index(State.LOG)
SECRET = "key-SECRET123"  # noqa: S105 - looks like one, on purpose


def views(child: Child) -> dict[str, View]:
    """What every installed tracker holds of the run."""
    run_id = tracker_run_id(read_journal(child.log_path).run)
    readers = {
        "wandb": lambda: wandb_view(child.log_path, run_id),
        "trackio": lambda: trackio_view(child.folder / "trackio", run_id),
        "tensorboard": lambda: tensorboard_view(child.log_path),
    }
    return {name: readers[name]() for name in TRACKERS}


def assert_views_equal(child: Child, steps: list[int]) -> None:
    """Every tracker has the rows of metrics.jsonl, each once and in order."""
    rows = metric_view(child.log_path)
    assert [step for step, _ in rows] == steps
    for name, view in views(child).items():
        numbers = [(step, {key: pytest.approx(value, rel=1e-6) for key, value in row.items()}) for step, row in rows]
        assert view == numbers, name


def test_one_row_a_batch_in_every_tracker_after_kills_on_either_side_of_each_write(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """Kills between row and journal, with rows still held back, before the row, and before the run is finished."""
    settings = (*EVALUATED, *TRACKED)
    child = fixture_d(tmp_path, *settings)
    taken = fork_context().Semaphore(0)
    kills: list[Callable[[str], None]] = [
        # The trackers have the row of batch 0, and the journal does not know.
        KillOnceTracked("append:before:transition", LOG, len(TRACKERS), taken),
        # The journal knows of batches 0 and 1, and no tracker has their rows: the process began at Log of batch 0.
        KillUntracked("append:after:transition", len(CYCLE)),
        # The row of batch 2 is not written yet, and the trackers may or may not be up to date.
        KillAt("append:after:state_entered", LOG),
        # Everything is written and handed over, the run is not finished.
        KillAt("append:before:run_finished"),
    ]
    batches = []
    for kill in kills:
        assert run_tracked(fixture_d(tmp_path, *settings, observer=kill)) == -9
        batches.append(read_journal(child.log_path).run.batch)
    assert batches == [0, 2, 2, 3]
    assert run_tracked(child) == 0
    assert_views_equal(child, [0, 1, 2, 3])
    rows = outcome_of_run(child.log_path)["metrics"]
    trained = [{name: value for name, value in row.items() if not name.startswith("test/")} for row in rows[:3]]
    assert trained == uninterrupted["metrics"]
    assert "test/reward_mean" in rows[3]


def test_a_finished_run_that_is_given_more_batches_or_a_tracker_late_has_all_its_rows_there(tmp_path: Path) -> None:
    """The step of the final evaluation becomes that of a batch: trackers that keep what they have get a new run.

    And H19 for trackers: the configuration reaches them without secrets, the console and the code do not.
    """
    assert run_tracked(fixture_d(tmp_path, *EVALUATED, "max_batches=1")) == 0
    late = fixture_d(tmp_path, *EVALUATED, "max_batches=1", *TRACKED, f"base_url=http://host/{SECRET}")
    assert run_tracked(late, SOME_API_KEY=SECRET) == 0  # nothing to do, but to bring the trackers up to date
    assert_views_equal(late, [0, 1])
    stored = [path for name in ("run/wandb", "run/tensorboard", "trackio") for path in (tmp_path / name).rglob("*")]
    text = b"".join(path.read_bytes() for path in stored if path.is_file())
    assert b"letters:agent" in text
    for kept_back in (SECRET, "nothing to do", "class ", str(AGENTS)):
        assert kept_back.encode() not in text
    first_id = tracker_run_id(read_journal(late.log_path).run)
    longer = fixture_d(tmp_path, *EVALUATED, "max_batches=2", *TRACKED)
    assert run_tracked(longer) == 0
    assert_views_equal(longer, [0, 1, 2])
    assert tracker_run_id(read_journal(longer.log_path).run) == f"{first_id}-1"


def test_a_tracker_that_fails_costs_one_warning_and_nothing_else(tmp_path: Path) -> None:
    """Its folder cannot be made; W&B's name may change meanwhile (H8)."""
    child = fixture_d(tmp_path, "tensorboard=true", "max_batches=2", "log_level=warning")
    child.log_path.mkdir()
    (child.log_path / "tensorboard").write_text("in the way")
    assert run_child(child) == 0
    assert child.output.count("a tracker failed") == 1
    assert [step for step, _ in metric_view(child.log_path)] == [0, 1]
    (child.log_path / "tensorboard").unlink()
    assert run_child(fixture_d(tmp_path, "tensorboard=true", "max_batches=2", "wandb_name=other")) == 0
    assert [step for step, _ in tensorboard_view(child.log_path)] == [0, 1]


def test_what_a_tracker_lacks_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """No key for W&B: exit 2, and no run directory."""
    child = fixture_d(tmp_path, "wandb_project=p")
    code = run_tracked(child, WANDB_MODE="online", WANDB_API_KEY="", NETRC=str(tmp_path / "none"), HOME=str(tmp_path))
    assert code == 2
    assert "W&B has no key" in child.output
    assert not child.log_path.exists()


DAMAGES = st.one_of(
    st.just(("missing", 0)),
    st.tuples(
        st.sampled_from(["torn", "behind", "ahead", "doubled", "foreign", "blank", "bytes"]), st.integers(0, 9999)
    ),
)


def damage(path: Path, kind: str, where: int) -> None:
    """One thing that may have happened to the file."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    index = where % len(lines)
    foreign = json.dumps({"step": where, "x": 1}).encode() + b"\n"
    damaged = {
        "torn": data[: where % len(data)],
        "behind": b"".join(lines[:index]),
        "ahead": data + foreign,
        "doubled": b"".join([*lines[: index + 1], *lines[index:]]),
        "foreign": b"".join([*lines[:index], foreign, *lines[index + 1 :]]),
        "blank": b"".join([*lines[:index], b"\n", *lines[index:]]),
        "bytes": data[: where % len(data)] + b"\xff\x00" + data[where % len(data) + 2 :],
    }
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged[kind])


@given(st.lists(DAMAGES, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_metrics_are_rebuilt_whatever_became_of_the_file(uninterrupted_child: Child, damages: list[Any]) -> None:
    """Missing, torn, behind, ahead, doubled, foreign: one view, that of the journal."""
    run = read_journal(uninterrupted_child.log_path).run
    whole = (uninterrupted_child.log_path / "metrics.jsonl").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        for kind, where in damages:
            path.write_bytes(whole)
            damage(path, kind, where)
        MetricRows(Path(folder), run).close()
        assert path.read_bytes() == whole
