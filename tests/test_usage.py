"""What a run says it was charged for and what of it was lost is what a ledger beneath it measured (issue 3, point 10).

The ledger stands between the usage file and the backend: what it writes is what the backend was asked for.
"""

import json
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from observers import FillDiskAt, HoldAt
from processes import Child, fixture_d, fork_context, run_child, start_child
from request_ledger import RESTORE, Measured

from orchestrator.backends.usage import USAGE_NAME, Event, read_usage
from orchestrator.cli import main
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt, KillAtNumber, outcome_of_run

SETTINGS = ("concurrency=1", "num_substeps=2", "rolling_save_every=2")
"""Two optimizer steps a batch; a state after batch 1 and after the last, so batch 1 is redone from the beginning."""
SIDE_BY_SIDE = SETTINGS[1:]
MAX_TOKENS = 4
"""Of a reply in fixture D."""
CALLS_OF_A_BATCH = 8
STEPS_OF_A_BATCH = 2
TRAIN_STEP_OF_BATCH_1 = len(CYCLE) + CYCLE.index(State.TRAIN_STEP)
SWAP_SAMPLER_OF_BATCH_1 = len(CYCLE) + CYCLE.index(State.SWAP_SAMPLER)


NUM_KILLS = 4
FARTHEST_POINT = 120
"""A whole run passes about 500 points."""


@dataclass(frozen=True)
class Story:
    """Where a run is killed, and what that costs."""

    kills: tuple[KillAt, ...] = ()
    calls_not_made: int = 0
    """Killed when they were counted and before the backend was asked."""
    unanswered_calls: int = 0
    steps_lost: int = 0


STORIES = {
    "undisturbed": Story(),
    "between two turns": Story(
        (KillAt("request:before:sample", CALLS_OF_A_BATCH + 5),),
        calls_not_made=1,
        unanswered_calls=1,
        steps_lost=STEPS_OF_A_BATCH,  # those of batch 0, redone for batch 1
    ),
    "after the optimizer steps and before their record": Story(
        (KillAt("append:before:transition", TRAIN_STEP_OF_BATCH_1),), steps_lost=2 * STEPS_OF_A_BATCH
    ),
    "after the save and before its record": Story((KillAt("append:before:transition", SWAP_SAMPLER_OF_BATCH_1),)),
    "during a restore": Story(
        (
            KillAt("append:after:state_entered", TRAIN_STEP_OF_BATCH_1),
            KillAt(f"request:after:{RESTORE}"),
        ),
        unanswered_calls=1,
        steps_lost=STEPS_OF_A_BATCH,
    ),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run; its directory is not to be written to."""
    child = fixture_d(tmp_path_factory.mktemp("undisturbed"), *SETTINGS)
    assert run_child(child) == 0
    return child


def status(log_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The work as ``status --json`` gives it, and what ``status`` says was lost."""
    assert main(["status", str(log_path), "--json"]) == 0
    work = json.loads(capsys.readouterr().out)["work"]
    assert main(["status", str(log_path)]) == 0
    [told] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("work lost: ")]
    return work, told.removeprefix("work lost: ")


def in_words(output: str) -> str:
    """A child's output without the frame and the line breaks of the summary's panel."""
    return re.sub(r"[\s│]+", " ", output)


def by_batch(work: dict[str, Any], thing: str, kind: str) -> dict[int, int]:
    """One amount of each batch that has any."""
    return {int(batch): done[thing][kind] for batch, done in work["batches"].items() if done[thing][kind]}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_what_was_made_kept_and_lost_is_what_the_ledger_measured(
    story: Story, undisturbed: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = undisturbed
    for kill in story.kills:
        child = fixture_d(tmp_path, *SETTINGS, observer=kill)
        assert run_child(child) == -9
        work, told = status(child.log_path, capsys)
        check_tokens(work, told, Measured(child, undisturbed, calls_of_a_batch=CALLS_OF_A_BATCH))
    if story.kills:
        child = fixture_d(tmp_path, *SETTINGS)
        assert run_child(child) == 0
        assert outcome_of_run(child.log_path) == outcome_of_run(undisturbed.log_path)
    work, told = status(child.log_path, capsys)
    measured = Measured(child, undisturbed, calls_of_a_batch=CALLS_OF_A_BATCH)
    check_requests(child.log_path, measured, story)
    check_tokens(work, told, measured)
    check_steps(work, told, measured, story)
    total = work["total"]
    assert total["sampled_tokens"]["lost"] == 0, "the turns of unfinished rollouts are kept"
    assert total["unanswered_calls"] == story.unanswered_calls
    assert (f"{story.unanswered_calls} of {total['calls']} calls never answered" in told) == bool(
        story.unanswered_calls
    )
    assert (total["saves"]["lost"], work["saves_alive"]) == (0, measured.saves_on_disk)
    assert (work["whole"], work["unreadable_lines"]) == (True, 0)
    if not story.kills:
        assert told == f"none of {total['sampled_tokens']['made']} sampled tokens, none of 6 optimizer steps"
    assert f"work lost {told} " in in_words(child.output)


def check_requests(log_path: Path, measured: Measured, story: Story) -> None:
    """Every request is counted, and in the batch whose tasks it is about; at most the killed one was never made."""
    lines = [line for line in read_usage(log_path) if line is not None and line.event is Event.ASKED]
    asked = Counter(line.request for line in lines if line.request != "get_info")  # which the ledger lets pass
    assert (asked - measured.requests).total() == story.calls_not_made
    assert not measured.requests - asked
    prompts = Counter(line.batch for line in lines if line.request == "sample")
    assert (prompts - measured.calls_by_batch).total() == asked["sample"] - measured.requests["sample"]
    assert not measured.calls_by_batch - prompts


def check_tokens(work: dict[str, Any], told: str, measured: Measured) -> None:
    """Sampled ones, of each batch and of all."""
    made, kept = measured.sampled_tokens_by_batch, measured.stored_tokens_by_batch
    lost = made.total() - kept.total()
    assert work["total"]["sampled_tokens"] == {"made": made.total(), "kept": kept.total(), "lost": lost}
    assert by_batch(work, "sampled_tokens", "made") == made
    assert by_batch(work, "sampled_tokens", "kept") == kept
    assert (f"{lost} of {made.total()} sampled tokens" in told) == (lost > 0)


def check_steps(work: dict[str, Any], told: str, measured: Measured, story: Story) -> None:
    """Optimizer steps in the surviving weights, of each batch; all of them, and the tokens they were trained on."""
    steps, surviving = measured.steps, measured.surviving
    assert len(steps) - len(surviving) == story.steps_lost
    assert work["total"]["optim_steps"] == {"made": len(steps), "kept": len(surviving), "lost": story.steps_lost}
    assert by_batch(work, "optim_steps", "kept") == Counter(step.batch for step in surviving)
    assert set(by_batch(work, "optim_steps", "kept").values()) == {STEPS_OF_A_BATCH}
    made, kept = (sum(step.trained_tokens for step in some) for some in (steps, surviving))
    assert work["total"]["trained_tokens"] == {"made": made, "kept": kept, "lost": made - kept}
    in_told = f"{story.steps_lost} of {len(steps)} optimizer steps, {made - kept:,} of {made:,} trained tokens"
    assert (in_told in told) == (story.steps_lost > 0)


def test_kills_at_any_points_leave_nothing_uncounted(
    undisturbed: Child, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With calls side by side, whose replies may be lost between the ledger and the usage file, in either process."""
    random = Random(3)
    for kill in range(NUM_KILLS):
        note = tmp_path / f"point-{kill}"
        observer = KillAtNumber(random.randrange(FARTHEST_POINT), note)
        assert run_child(fixture_d(tmp_path, *SIDE_BY_SIDE, observer=observer)) == -9
    child = fixture_d(tmp_path, *SIDE_BY_SIDE)
    assert run_child(child) == 0
    measured = Measured(child, undisturbed, calls_of_a_batch=CALLS_OF_A_BATCH)
    work, _ = status(child.log_path, capsys)
    total = work["total"]
    asked = Counter(
        line.request for line in read_usage(child.log_path) if line is not None and line.event is Event.ASKED
    )
    assert not measured.requests - asked
    not_made = asked["sample"] - measured.requests["sample"]
    unknown = measured.sampled_tokens_by_batch.total() - total["sampled_tokens"]["made"]
    assert 0 <= unknown <= MAX_TOKENS * total["unanswered_calls"]
    assert measured.unanswered_samples + not_made <= total["unanswered_calls"]
    assert total["sampled_tokens"]["kept"] == measured.stored_tokens_by_batch.total()
    steps_not_made = asked["optim_step"] - len(measured.steps)
    assert 0 <= steps_not_made <= NUM_KILLS
    lost = len(measured.steps) + steps_not_made - len(measured.surviving)
    assert total["optim_steps"]["lost"] == lost
    assert by_batch(work, "optim_steps", "kept") == Counter(step.batch for step in measured.surviving)
    # A save or a deletion that was in flight may have been carried out or not.
    assert total["saves"]["lost"] <= NUM_KILLS
    assert abs(work["saves_alive"] - measured.saves_on_disk) <= NUM_KILLS
    assert work["whole"]


def test_a_call_in_flight_counts_as_unanswered_once_its_process_is_dead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Held between two turns of batch 1 the run has lost nothing; killed there, it has lost that call."""
    reached, let_go = (fork_context().Semaphore(0) for _ in range(2))
    observer = HoldAt("request:before:sample", frozenset({CALLS_OF_A_BATCH + 5}), reached, let_go)
    process = start_child(fixture_d(tmp_path, *SETTINGS, observer=observer))
    assert reached.acquire(timeout=60)
    work, told = status(tmp_path / "run", capsys)
    assert told == f"none of {work['total']['sampled_tokens']['made']} sampled tokens, none of 2 optimizer steps"
    assert (work["total"]["unanswered_calls"], work["whole"]) == (0, True)
    process.kill()
    process.join()
    work, told = status(tmp_path / "run", capsys)
    assert work["total"]["unanswered_calls"] == 1
    assert work["total"]["sampled_tokens"]["lost"] == 0
    assert "1 of " in told


def test_a_run_that_was_not_counted_says_so_and_one_counted_in_part_too(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of an earlier version has no usage file, until it is resumed by this one."""
    (killed / "run" / USAGE_NAME).unlink()
    assert status(killed / "run", capsys) == (None, "not recorded")
    assert run_child(fixture_d(killed)) == 0
    work, told = status(killed / "run", capsys)
    assert not work["whole"]
    assert told.endswith("; a part of the run was not recorded")
    assert work["total"]["optim_steps"] == {"made": 3, "kept": 3, "lost": 1}


def test_a_usage_file_that_cannot_be_written_is_one_warning_and_changes_nothing_else(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The disk is full for that file alone, from batch 0's Rollout on."""
    observer = FillDiskAt("append:after:state_entered", CYCLE.index(State.ROLLOUT), tmp_path / "run" / USAGE_NAME)
    child = fixture_d(tmp_path, observer=observer)
    assert run_child(child) == 0
    assert child.output.count("usage is not counted") == 1
    assert "a part of the run was not recorded" in in_words(child.output)
    assert outcome_of_run(child.log_path) == uninterrupted


def test_a_usage_file_without_a_journal_belongs_to_no_run(tmp_path: Path, undisturbed: Child) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(undisturbed.log_path / USAGE_NAME, tmp_path / "run")
    child = fixture_d(tmp_path)
    assert run_child(child) == 3
    assert f"holds {USAGE_NAME} but no journal.jsonl" in child.output
