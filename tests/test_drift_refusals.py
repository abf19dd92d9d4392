"""What a resume may not change is refused with old and new before anything is spent; what it may, changes nothing."""

from pathlib import Path
from typing import Any

import pytest
from processes import Child, fixture_d, run_child, run_command

from orchestrator.journal.log import read_journal
from orchestrator.testing import KillAt, outcome_of_run, read_ledger


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("batch_size=3", "batch_size was 2 and is 3"),
        ("lora_rank=4", "lora_rank was 0 and is 4"),
        ("seed=43", "seed was 42 and is 43"),
        ("adapter=proxy gateway=llm_proxy", "adapter was 'capture' and is 'proxy'"),
        ("shuffle=false", "shuffle was True and is False"),
        ("local.sample_batch_size=7", "local.sample_batch_size was 32 and is 7"),
        ("lr_schedule=cosine shuffle_datums=false", "lr_schedule was None and is 'cosine'; shuffle_datums was True"),
        ("kl_reference_config.base_model=tiny", "kl_reference_config.base_model was None and is 'tiny'"),
        ("max_batches=2", "max_batches was None and is 2"),
        ("train_dataset=troubled:VAL_TASKS", "the dataset fingerprint was train: 6 rows"),
    ],
)
def test_another_identity_is_refused_with_field_old_and_new(setting: str, told: str, killed: Path) -> None:
    """H8."""
    child = fixture_d(killed, *setting.split())
    journal, requests = (child.log_path / "journal.jsonl").read_bytes(), read_ledger(child.ledger)
    assert run_child(child) == 3
    assert told in child.output
    assert (child.log_path / "journal.jsonl").read_bytes() == journal
    assert read_ledger(child.ledger) == requests


def test_operational_fields_may_change_and_change_nothing(killed: Path, uninterrupted: dict[str, Any]) -> None:
    """H8: the run was started with concurrency=1."""
    settings = ("concurrency=3", "num_workers=2", "rolling_ttl_seconds=600", "log_level=warning")
    assert run_child(fixture_d(killed, *settings, "probe_optimizer_restore=true")) == 0
    assert outcome_of_run(killed / "run") == uninterrupted
    assert read_journal(killed / "run").run.optimizer_restores, "it was tried, and left nothing behind"


def test_drift_that_is_accepted_is_journaled_and_compared_with_from_then_on(killed: Path) -> None:
    """H8: after ``allow_drift`` the new value is the run's own, and the old one is the drift."""
    drift = ("learning_rate=0.002", "loss_fn=ppo", "allow_drift=learning_rate,loss_fn")
    assert run_child(fixture_d(killed, *drift, observer=KillAt("append:after:process_started"))) == -9
    started = [record.fields for record in read_journal(killed / "run").records if record.kind == "process_started"]
    assert started[-1]["drift"] == [
        {"field": "learning_rate", "old": 0.001, "new": 0.002},
        {"field": "loss_fn", "old": "importance_sampling", "new": "ppo"},
    ]
    back = fixture_d(killed)
    assert run_child(back) == 3
    assert "learning_rate was 0.002 and is 0.001" in back.output
    assert run_child(fixture_d(killed, *drift[:2], observer=KillAt("append:after:process_started"))) == -9


def test_edited_tasks_are_refused_until_the_drift_is_accepted(tmp_path: Path) -> None:
    """H24."""
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'"t{index}"\n' for index in range(6)))

    def from_file(*settings: str, observer: Any) -> Child:
        child = fixture_d(tmp_path, "train_file=tasks.jsonl", "max_batches=1", *settings, observer=observer)
        kept = tuple(setting for setting in child.settings if not setting.startswith("train_dataset="))
        return Child(kept, child.folder, child.observer)

    on_entering_rollout = KillAt("append:after:state_entered", 2)
    never = KillAt("never")
    assert run_child(from_file(observer=on_entering_rollout)) == -9
    rows = tasks.read_text()
    tasks.write_text("".join(reversed(rows.splitlines(keepends=True))))
    assert run_child(from_file(observer=never)) == 3, "the order of the tasks is part of what they are"
    tasks.write_text(rows)
    tasks.write_text(tasks.read_text().replace("t5", "t6"))
    assert run_child(from_file(observer=never)) == 3
    assert "the dataset fingerprint was train: 6 rows sha256" in from_file(observer=never).output
    assert not [line for line in read_ledger(tmp_path / "ledger.jsonl") if line["request"] == "sample"]

    assert run_child(from_file("allow_drift=dataset", observer=never)) == 0
    started = [record for record in read_journal(tmp_path / "run").records if record.kind == "process_started"]
    assert [[drift["field"] for drift in record.fields["drift"]] for record in started] == [[], ["dataset"]]


def test_tasks_that_stored_rollouts_do_not_fit_are_refused_before_the_drift_is_journaled(
    killed: Path, uninterrupted: dict[str, Any]
) -> None:
    """Else the journal would hold the new tasks, and going back to the old ones would be drift in turn."""
    journal = killed / "run" / "journal.jsonl"
    before = journal.read_bytes()
    other = fixture_d(killed, "seed=43", "allow_drift=seed")
    assert run_child(other) == 3
    assert "Go back to the old tasks" in other.output
    assert journal.read_bytes() == before
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(killed / "run") == uninterrupted


def test_too_few_tasks_for_a_batch_are_a_usage_error_and_start_nothing(tmp_path: Path) -> None:
    """H15."""
    (tmp_path / "three.jsonl").write_text('"a"\n"b"\n"c"\n')
    settings = ("recipe=none", "agent=letters:agent", "train_file=three.jsonl", "batch_size=4", "log_path=run")
    code, stdout, stderr = run_command(tmp_path, "run", *settings)
    assert code == 2
    assert "3 rows" in stderr
    assert "batch_size 4" in stderr
    assert "complete" not in stdout + stderr
    assert not (tmp_path / "run").exists()
