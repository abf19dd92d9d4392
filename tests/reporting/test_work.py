"""Laws of work lost: made less kept, no sooner than it is certain, and never less than nothing."""

from pathlib import Path

import pytest
from journal.walk import advance, advance_to, checkpoint_saved, take_up

from orchestrator.backends.usage import USAGE_NAME, Event, UsageLog
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind
from orchestrator.names import State
from orchestrator.reporting.work import Amount, WorkDone, read_work, work_lost


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Of a run that is in SwapSampler of batch 0, about to enter it."""
    journal = take_up(tmp_path)
    advance_to(journal, 0, State.SWAP_SAMPLER)
    return journal


def read(journal: Journal, *, live: bool = False) -> WorkDone:
    """The work of the journal's run."""
    work = read_work(journal.path.parent, journal.records, journal.run, live=live)
    assert work is not None
    return work


def usage_in(journal: Journal, batch: int, state: State, *, process: int = 0) -> UsageLog:
    """The usage file, open in ``state`` of ``batch``."""
    return UsageLog(journal.path.parent, process=process, batch=batch, state=state.value)


def train(journal: Journal, *, steps: int, batch: int = 0, state: State = State.TRAIN_STEP) -> None:
    """``steps`` optimizer steps on 500 tokens each."""
    with usage_in(journal, batch, state) as usage:
        for _ in range(steps):
            usage.asked("forward_backward", trained_tokens=500).answered()
            usage.asked("optim_step").answered()


def test_steps_beyond_those_of_the_journal_are_lost_where_they_were_made(journal: Journal) -> None:
    """The journal has one step on 1,000 tokens in batch 0."""
    train(journal, steps=3)
    train(journal, steps=1, state=State.SWAP_SAMPLER)
    work = read(journal)
    assert work.total.optim_steps == Amount(made=4, kept=1, lost=3)
    assert work.total.trained_tokens == Amount(made=2000, kept=1000, lost=1000)
    assert "3 of 4 optimizer steps, 1,000 of 2,000 trained tokens" in work_lost(work)


def test_a_state_under_way_has_lost_nothing_yet_and_its_calls_are_in_flight(journal: Journal) -> None:
    advance_to(journal, 1, State.TRAIN_STEP)
    train(journal, steps=2)
    train(journal, steps=1, batch=1)
    with usage_in(journal, 1, State.TRAIN_STEP) as usage:
        usage.asked("optim_step")
    live, dead = read(journal, live=True), read(journal)
    assert (live.total.optim_steps, live.total.unanswered_calls) == (Amount(made=4, kept=1, lost=1), 0)
    assert (dead.total.optim_steps, dead.total.unanswered_calls) == (Amount(made=4, kept=1, lost=3), 1)


def test_a_run_that_goes_on_while_it_is_looked_at_has_lost_nothing_by_that(journal: Journal) -> None:
    """The usage file is read after the journal, and is already in the next batch."""
    train(journal, steps=2)
    train(journal, steps=2, batch=1)
    assert read(journal, live=True).total.optim_steps == Amount(made=4, kept=1, lost=1)


def test_what_was_refused_was_not_made(journal: Journal) -> None:
    train(journal, steps=2)
    with usage_in(journal, 0, State.TRAIN_STEP) as usage:
        usage.asked("forward_backward", trained_tokens=500).ended(Event.REFUSED)
        usage.asked("optim_step").ended(Event.REFUSED)
    work = read(journal)
    assert (work.total.optim_steps.made, work.total.trained_tokens.made) == (2, 1000)
    assert (work.total.calls, work.total.refused_calls, work.total.unanswered_calls) == (6, 2, 0)


@pytest.mark.parametrize("earlier_reply", ["arrived", "lost in a kill", "lost within the SDK"])
def test_a_save_that_was_found_was_made_once(journal: Journal, earlier_reply: str) -> None:
    """H5: of the checkpoint's save, whose name is then found taken; the sampler's goes well."""
    journal.append(Kind.STATE_ENTERED, batch=0, state=State.SWAP_SAMPLER, attempt=journal.run.entries)
    with usage_in(journal, 0, State.SWAP_SAMPLER) as usage:
        usage.asked("save_weights_for_sampler", name="000001").answered()
        if earlier_reply != "lost within the SDK":
            request = usage.asked("save_state", name="000001")
        if earlier_reply == "arrived":
            request.answered()
        usage.asked("save_state", name="000001").ended(Event.FOUND)
    journal.append(Kind.CHECKPOINT_SAVED, **checkpoint_saved(journal.run, "000001"))
    advance(journal, 1)
    saves_of_batch = read(journal).batches[0].saves
    assert (saves_of_batch.made, saves_of_batch.lost) == (2, 0)
    assert read(journal).total.unanswered_calls == (earlier_reply == "lost in a kill")


def test_where_more_was_kept_than_counted_it_says_so(journal: Journal) -> None:
    """The run began before it was counted; what was lost later does not make up for it."""
    train(journal, steps=1, state=State.SWAP_SAMPLER)
    work = read(journal)
    assert work.total.optim_steps == Amount(made=1, kept=1, lost=1)
    assert not work.whole
    assert work_lost(work).endswith("a part of the run was not recorded")


def test_lines_that_cannot_be_read_are_told(journal: Journal) -> None:
    with (journal.path.parent / USAGE_NAME).open("ab") as file:
        file.write(b"{}\n{\n")
    assert f"unreadable lines of {USAGE_NAME}: 2" in work_lost(read(journal))


def test_without_a_usage_file_nothing_is_recorded(journal: Journal) -> None:
    assert read_work(journal.path.parent, journal.records, journal.run, live=False) is None
    assert work_lost(None) == "not recorded"
