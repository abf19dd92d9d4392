"""Budgets count what the whole run has spent, wasted work too, and stop it resumable (issue 5, point 8)."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from journal.walk import advance
from processes import Child, fixture_d, run_child

from orchestrator.backends.usage import USAGE_NAME, Event, UsageLine
from orchestrator.cli import main
from orchestrator.config import Config
from orchestrator.errors import BudgetReachedError
from orchestrator.journal.log import Journal, read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import State
from orchestrator.reporting.budget import Budget
from orchestrator.reporting.spending import Spending, read_spending
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

CALLS_OF_A_BATCH = 8


def spending(child: Child) -> Spending:
    return read_spending(child.log_path, read_journal(child.log_path).records)


def test_a_token_budget_stops_the_run_in_rollout_and_no_restart_resets_it(
    tmp_path: Path, uninterrupted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in batch 0, so that some tokens are wasted or paid by a process that is gone; more of it goes on."""
    settings = ("concurrency=1", "save_every=1")
    killed = fixture_d(tmp_path, *settings, observer=KillAt("request:before:sample", 5))
    assert run_child(killed) == -9
    spent = spending(killed).total
    assert spent.sampled_tokens > 0
    budget = spent.tokens + 40
    stopped = fixture_d(tmp_path, *settings, f"max_tokens_total={budget}")
    assert run_child(stopped) == 1
    assert f"max_tokens_total={budget} is reached: the run has spent " in stopped.output
    assert "run the same command again with more of it" in stopped.output
    reading = read_journal(stopped.log_path)
    assert reading.run.last_stop is not None
    assert (reading.run.last_stop.reason, reading.run.failures) == ("budget", 0)
    assert reading.run.state in {State.ROLLOUT, State.TRAIN_STEP}
    longest_call = 64
    assert budget <= spending(stopped).total.tokens <= budget + longest_call

    journal, requests = (stopped.log_path / "journal.jsonl").read_bytes(), read_ledger(stopped.ledger)
    assert run_child(stopped) == 1, "what is spent is spent"
    assert (stopped.log_path / "journal.jsonl").read_bytes() == journal
    assert read_ledger(stopped.ledger) == requests
    assert main(["status", str(stopped.log_path)]) == 0
    told = capsys.readouterr().out
    assert f"budget: 0 of max_tokens_total={budget:,} left" in told
    assert "last stop: budget (BudgetReachedError: max_tokens_total" in told

    child = fixture_d(tmp_path, *settings)
    assert run_child(child) == 0
    outcome = outcome_of_run(child.log_path)
    assert outcome["metrics"] == uninterrupted["metrics"]
    for batch in range(3):
        assert outcome["results"][batch][State.TRAIN_STEP] == uninterrupted["results"][batch][State.TRAIN_STEP]


def test_a_train_step_that_reaches_the_budget_is_finished_and_saved(tmp_path: Path, uninterrupted_child: Child) -> None:
    """Cut short it would be paid again: the run stops before the next state that spends."""
    cells = spending(uninterrupted_child).cells
    before = sum(cells[0, state].tokens for state in (State.PUBLISH_MODEL, State.ROLLOUT) if (0, state) in cells)
    child = fixture_d(tmp_path, f"max_tokens_total={before + 1}")
    assert run_child(child) == 1
    run = read_journal(child.log_path).run
    assert (run.batch, run.state, run.entries) == (1, State.MAYBE_EVALUATE, 0)
    assert run.batches[0].results[State.TRAIN_STEP]["optim_steps"] == 1


def test_time_is_budgeted_over_all_processes(tmp_path: Path) -> None:
    """The first process has no time to enter a state that spends; the second is refused before it begins."""
    child = fixture_d(tmp_path, "max_wall_seconds=0.001")
    assert run_child(child) == 1
    assert "max_wall_seconds=0.001 is reached: the run's processes were at work for " in child.output
    run = read_journal(child.log_path).run
    assert (run.batch, run.state, run.last_stop and run.last_stop.reason) == (0, State.MAYBE_EVALUATE, "budget")
    assert run_child(child) == 1
    assert read_journal(child.log_path).run.processes == 1


def test_a_process_that_was_killed_in_a_long_state_was_at_work_until_it_was_last_heard_of(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        advance(journal, 3)
        last = datetime.fromisoformat(journal.records[-1].at)
    heard = UsageLine(0, 0, State.ROLLOUT.value, Event.ASKED, "sample", prompt_tokens=7)
    at = (last + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    (tmp_path / USAGE_NAME).write_bytes(heard.to_json(at) + b"torn")
    records = read_journal(tmp_path).records
    assert 7200 <= read_spending(tmp_path, records).wall_seconds < 7260
    assert read_spending(tmp_path, records).total.prompt_tokens == 7
    (tmp_path / USAGE_NAME).unlink()
    assert read_spending(tmp_path, records).wall_seconds < 60


def test_without_its_usage_file_a_run_has_spent_what_it_kept(uninterrupted_child: Child, tmp_path: Path) -> None:
    """So deleting a file does not refill a budget; nothing was wasted here, so that is all but the saves."""
    reading = read_journal(uninterrupted_child.log_path)
    counted, kept = (read_spending(folder, reading.records) for folder in (uninterrupted_child.log_path, tmp_path))
    assert kept.total.tokens == counted.total.tokens > 0
    assert (kept.total.saves, counted.total.saves) == (0, 6)


def test_a_budget_interrupts_only_where_all_that_is_answered_is_kept() -> None:
    reached: list[str] = []
    now = [0.0]
    budget = Budget(
        Config(max_tokens_total=10, max_wall_seconds=60.0),
        Spending({}, wall_seconds=20.0),
        on_reached=lambda: reached.append("reached"),
        clock=lambda: now[0],
    )
    asked = UsageLine(0, 0, State.TRAIN_STEP.value, Event.ASKED, "forward_backward", trained_tokens=9)
    budget.enter(State.TRAIN_STEP)
    budget.spend(asked)
    budget.spend(asked._replace(event=Event.REFUSED))
    budget.enter(State.SWAP_SAMPLER)
    budget.enter(State.ROLLOUT)
    assert (budget.left.spent.tokens, budget.seconds_left, reached) == (0, 40.0, [])
    now[0] = 41.0
    budget.look()
    assert reached == ["reached"]
    budget.enter(State.SWAP_SAMPLER)
    for state in (State.MAYBE_EVALUATE, State.ROLLOUT, State.TRAIN_STEP):
        with pytest.raises(BudgetReachedError, match=r"max_wall_seconds=60 is reached: .* 61\.0 s"):
            budget.enter(state)


def test_status_tells_what_each_state_is_charged_for(
    uninterrupted_child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers are those of the journal's results, since nothing was wasted."""
    assert main(["status", str(uninterrupted_child.log_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["spending"]
    run = read_journal(uninterrupted_child.log_path).run
    for batch, facts in run.batches.items():
        if batch < run.num_batches:
            played, trained = (facts.results[state] for state in (State.ROLLOUT, State.TRAIN_STEP))
            assert told["batches"][str(batch)]["Rollout"]["sampled_tokens"] == played["sampled_tokens"]
            assert told["batches"][str(batch)]["TrainStep"]["trained_tokens"] == trained["trained_tokens"]
    assert set(told["states"]) == {"PublishModel", "Rollout", "TrainStep", "SwapSampler"}
    assert main(["status", str(uninterrupted_child.log_path)]) == 0
    assert f"  Rollout: {told['states']['Rollout']['prompt_tokens']:,} prompt, " in capsys.readouterr().out
    records = read_journal(uninterrupted_child.log_path).records
    assert records[-1].kind is Kind.PROCESS_STOPPED
