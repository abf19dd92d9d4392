"""Laws of what is read of a run: the timeline is the journal's, the sample is chosen by rule, and pages stay small."""

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from golden.make import FOLDER, STORIES
from journal.walk import (
    CONFIG,
    advance,
    advance_to,
    checkpoint_saved,
    next_record,
    process_started,
    process_stopped,
    run_started,
    state_entered,
)

from orchestrator.disk import Disk
from orchestrator.journal.log import Journal
from orchestrator.journal.records import FORMAT_VERSION, Kind
from orchestrator.names import State
from orchestrator.report.charts import MAX_POINTS, figures
from orchestrator.report.history import MAX_TIMELINE_BATCHES
from orchestrator.report.page import page
from orchestrator.report.read import read_report
from orchestrator.report.samples import MAX_LOGPROBS, MAX_ROLLOUTS, choose_rollouts
from orchestrator.report.timeline import LEFT_OFF, read_timeline
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn, rollout_path

NAMED = {**CONFIG, "model_name": "tiny", "backend": "local"}
BEGINNING = datetime(2026, 11, 30, 11, tzinfo=UTC)


class Clock:
    """One second later each time it is looked at."""

    def __init__(self) -> None:
        self.now = BEGINNING

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


class Unsynced(Disk):
    """What is written in a test need not survive a power cut."""

    def sync(self, descriptor: int, path: Path) -> None:
        """Does not wait for the disk."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def journal(tmp_path: Path, clock: Clock) -> Journal:
    """Empty."""
    return Journal(tmp_path, clock=clock)


def test_hours_when_nobody_was_at_work_are_no_work_time(journal: Journal, clock: Clock) -> None:
    """And what a killed process did is known to its last request."""
    advance_to(journal, 0, State.ROLLOUT)
    journal.append(Kind.STATE_ENTERED, **state_entered(journal.run))
    died = clock.now + timedelta(seconds=7)
    clock.now += timedelta(hours=5)
    journal.append(Kind.PROCESS_STARTED, **process_started(journal.run))
    resumed = clock.now
    advance(journal, 2)
    timeline = read_timeline(journal.records, last_requests={0: died}, now=None)
    first, second = timeline.processes
    assert (first.ending, first.ended_in, second.took_up) == ("killed", "Rollout of batch 0", "Rollout of batch 0")
    assert first.end_seconds == second.start_seconds == (died - BEGINNING).total_seconds() - 2
    assert second.idle_seconds == (resumed - died).total_seconds()
    [killed] = [span for span in timeline.spans if span.ending == "killed" and span.process == 0]
    assert (killed.state, killed.end_seconds - killed.start_seconds) == ("Rollout", 7)


def test_a_process_says_how_it_ended_and_one_at_work_has_not(journal: Journal, clock: Clock) -> None:
    advance_to(journal, 0, State.TRAIN_STEP)
    advance(journal, 1)
    journal.append(Kind.PROCESS_STOPPED, **process_stopped(journal.run, "failed", "no reply"))
    journal.append(Kind.PROCESS_STARTED, **process_started(journal.run))
    advance(journal, 1)
    timeline = read_timeline(journal.records, last_requests={}, now=clock.now + timedelta(seconds=5))
    assert [(process.ending, process.error) for process in timeline.processes] == [
        ("failed", "no reply"),
        ("at work", None),
    ]
    assert timeline.spans[-1].ending == "at work"
    assert timeline.spans[-1].end_seconds - timeline.spans[-1].start_seconds == 5


def test_a_state_that_is_entered_again_without_being_left_was_left_off(journal: Journal) -> None:
    advance_to(journal, 0, State.TRAIN_STEP)
    advance(journal, 1)
    again = journal.records[-1]
    timeline = read_timeline([*journal.records, again], last_requests={}, now=None)
    assert [span.ending for span in timeline.spans if span.state == "TrainStep"] == [LEFT_OFF, "killed"]


def test_a_checkpoint_lives_from_its_save_to_its_loss(journal: Journal) -> None:
    advance_to(journal, 1, State.PUBLISH_MODEL)
    journal.append(Kind.CHECKPOINT_SAVED, **checkpoint_saved(journal.run, "000001"))
    advance_to(journal, 2, State.LOG)
    journal.append(Kind.CHECKPOINT_SAVED, **checkpoint_saved(journal.run, "000002"))
    journal.append(Kind.CHECKPOINT_LOST, batch=1, name="000001", state_path="local://weights/000001", reason="expired")
    journal.append(Kind.PROCESS_STARTED, **process_started(journal.run))
    timeline = read_timeline(journal.records, last_requests={}, now=None)
    first, second = timeline.checkpoints
    assert (first.fate, first.dropped_in_batch) == ("dropped: expired", 2)
    assert (second.fate, second.dropped_in_batch) == ("alive", None)
    assert timeline.processes[-1].checkpoint == "000002"


def rollout(group: int, member: int, reward: float | None, *, tokens: int = 2) -> StoredRollout:
    """A rollout of batch 0 with one turn; without a reward it has failed."""
    outcome = Outcome.FAILED if reward is None else Outcome.SUCCEEDED
    turn = Turn((1, 2), (3,) * tokens, (-0.5,) * (tokens - 1) + (math.nan,), 0, "stop")
    error = "ValueError at agent.py:3: a secret" if reward is None else None
    return StoredRollout(RolloutKey(0, "train", group, member), 0, True, outcome, reward, (turn,), error)


def sample(journal: Journal, rollouts: list[StoredRollout]) -> Any:
    """What is chosen of ``rollouts``, stored in a batch under way."""
    advance_to(journal, 0, State.ROLLOUT)
    journal.append(Kind.STATE_ENTERED, **state_entered(journal.run))
    path = rollout_path(journal.path.parent, 0, "train")
    path.parent.mkdir()
    path.write_text("".join(f"{each.to_json()}\n" for each in rollouts))
    return choose_rollouts(
        journal.run, journal.path.parent, texts=None, why_no_texts=None, read=lambda _what, read: read()
    )


def test_the_rule_that_chooses_rollouts(journal: Journal) -> None:
    """Arrival decides nothing: lines are stored as rollouts finish. Of equals the lowest member stands for all."""
    stored = [
        *(rollout(1, member, 1.0) for member in (3, 1, 0)),
        *(rollout(0, member, reward) for member, reward in [(3, None), (2, 0.5), (1, 0.0), (0, 0.5), (4, None)]),
    ]
    chosen = sample(journal, stored)
    assert [(shown.key[-8:], shown.why) for shown in chosen.rollouts] == [
        ("0000-000", "best"),
        ("0000-001", "worst"),
        ("0000-003", "failed"),
        ("0001-000", "equal"),
    ]
    assert chosen.stored == len(stored)
    failed = chosen.rollouts[2]
    assert failed.error == "failed (ValueError at agent.py:3)", "what it quotes is not told"
    assert failed.turns[0].logprobs == (-0.5, None)
    assert failed.turns[0].mean_logprob is None
    assert failed.turns[0].prompt is failed.turns[0].token_texts is None


def test_a_page_holds_so_many_rollouts_and_logprobs_and_no_more(journal: Journal) -> None:
    chosen = sample(journal, [rollout(group, 0, 0.0, tokens=5_000) for group in range(200)])
    assert len(chosen.rollouts) == MAX_ROLLOUTS
    assert chosen.cut
    assert sum(len(turn.logprobs) for shown in chosen.rollouts for turn in shown.turns) <= MAX_LOGPROBS
    assert chosen.rollouts[0].turns[0].sampled_tokens == 5_000


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))
def test_a_journal_of_every_version_has_a_report(version: int, story: str) -> None:
    """Golden journals have no side files: that is told, and the rest reported."""
    kept = FOLDER / f"v{version}" / story
    report = read_report(kept, now=BEGINNING, with_prompts=True)
    told = page(report)
    assert report.run.run_id[:8] in told
    assert "Not everything could be read" in told


def test_a_page_is_no_larger_for_a_run_of_many_batches(tmp_path: Path) -> None:
    """Its curves are means and its timeline the newest batches; the numbers of the summary are counted over all."""
    num_batches = 2 * MAX_POINTS + 1
    with Journal(tmp_path, disk=Unsynced()) as journal:
        horizon = {"num_batches": num_batches, "schedule_batches": num_batches}
        journal.append(Kind.RUN_STARTED, **run_started(config=NAMED, **horizon))
        while not journal.run.finished:
            kind, fields = next_record(journal.run)
            if kind is Kind.TRANSITION:
                metrics = {"rollout/reward_mean": journal.run.batch / num_batches}
                facts = {"datums": 1, "evaluated": False, "outcomes": {"succeeded": 64}, "sha256": "00" * 32}
                fields["result"] |= {"metrics": metrics, **facts}
            journal.append(kind, **fields)
    report = read_report(tmp_path, now=BEGINNING, with_prompts=False)
    drawn = figures(report)
    assert len(drawn["reward"].rows) == MAX_POINTS + 1 - 100
    assert "mean of 3 batches" in drawn["reward"].note
    first = drawn["reward"].rows[0]
    assert first[2] == pytest.approx(1 / num_batches), "the mean of the first three batches"
    assert len({row[0] for row in drawn["timeline"].rows}) == MAX_TIMELINE_BATCHES
    assert len(page(report).encode()) < 2_000_000


def test_a_torn_last_line_is_left_out_and_told(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(Kind.RUN_STARTED, **run_started(config=NAMED))
        advance_to(journal, 0, State.ROLLOUT)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"v":1')
    report = read_report(tmp_path, now=BEGINNING, with_prompts=False)
    assert any("torn last line" in problem for problem in report.problems)
