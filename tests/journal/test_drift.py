"""Laws of drift: what makes the run what it is stays, horizons grow, the rest is free, and failures do not loop."""

import json
import re
from pathlib import Path
from typing import Any

import chz
import pytest
from journal.walk import DATASET, advance_to, process_started, process_stopped, run_started, state_entered, transition

from orchestrator.config import NESTED, Config, Drift, field_drifts, flatten
from orchestrator.errors import DriftError, TooManyAttemptsError
from orchestrator.journal.drift import FIRST_WEIGHTS, ORIGIN, check_attempts, check_drift
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind, Record, decode, encode
from orchestrator.journal.recovery import IllegalStepError, RunState
from orchestrator.names import State

CONFIG = Config(batch_size=2, lora_rank=32, n_epochs=2, max_batches=10)


def add(run: RunState, kind: Kind, fields: dict[str, Any]) -> None:
    run.apply(decode(encode(Record(run.num_records, "now", kind, fields))))


@pytest.fixture
def new_run() -> RunState:
    """A run that was started with ``CONFIG``, as its journal tells it."""
    run = RunState()
    add(run, Kind.RUN_STARTED, run_started(config=flatten(CONFIG)))
    add(run, Kind.PROCESS_STARTED, process_started(run))
    return run


@pytest.fixture
def run(new_run: RunState) -> RunState:
    """The same, once its first weights are published."""
    add(new_run, Kind.STATE_ENTERED, state_entered(new_run))
    add(new_run, Kind.TRANSITION, transition(new_run))
    return new_run


def other(value: object) -> Any:
    """Some other value than ``value``, of no matter what type."""
    return "other" if value is None or isinstance(value, str) else not value if isinstance(value, bool) else 4711


def changed(name: str) -> Config:
    """``CONFIG`` with another value in one field."""
    new = other(flatten(CONFIG)[name])
    owner, _, attribute = name.rpartition(".")
    if owner:
        return chz.replace(CONFIG, **{owner: chz.replace(NESTED[owner](), **{attribute: new})})
    return chz.replace(CONFIG, **{name: new if name != "allow_drift" else ("seed",)})


def test_a_field_that_is_newer_than_the_journal_counts_as_its_default() -> None:
    """A run that an older version began is resumed as it was; another value is drift as ever."""
    run = RunState()
    older = {name: value for name, value in flatten(CONFIG).items() if name not in {"loss_fn", "n_epochs"}}
    add(run, Kind.RUN_STARTED, run_started(config=older))
    same = chz.replace(CONFIG, n_epochs=1)
    assert check_drift(run, same, DATASET) == []
    with pytest.raises(DriftError, match="loss_fn was 'importance_sampling' and is 'ppo'"):
        check_drift(run, chz.replace(same, loss_fn="ppo"), DATASET)


@pytest.mark.parametrize("owner", ["", *NESTED])
def test_every_field_has_a_drift_class_or_the_suite_fails(owner: str) -> None:
    fields = chz.chz_fields(NESTED[owner] if owner else Config).items()
    unclassified = {name for name, field in fields if not isinstance((field.metadata or {}).get("drift"), Drift)}
    assert unclassified == (set() if owner else NESTED.keys()), "say what a resume may do to it"
    names = {f"{owner}.{name}" if owner else name for name, _ in fields}
    assert names - NESTED.keys() <= field_drifts().keys() == flatten(CONFIG).keys()


def test_settings_of_the_loss_are_compared_by_name_and_value(run: RunState) -> None:
    config = chz.replace(CONFIG, loss_fn_config={"clip_low_threshold": 1})
    with pytest.raises(DriftError, match=r"loss_fn_config was None and is {'clip_low_threshold': 1\.0}"):
        check_drift(run, config, DATASET)
    drift = check_drift(run, chz.replace(config, allow_drift=("loss_fn_config",)), DATASET)
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed"))
    add(run, Kind.PROCESS_STARTED, process_started(run, config=flatten(config), drift=drift))
    assert check_drift(run, config, DATASET) == []


def test_every_horizon_field_is_tested_below() -> None:
    horizons = {name for name, drift in field_drifts().items() if drift is Drift.HORIZON}
    assert horizons == {"n_epochs", "max_batches"}


def test_nothing_drifts_in_the_same_run(run: RunState) -> None:
    assert check_drift(run, CONFIG, DATASET) == []


def test_every_identity_field_is_refused_by_name_and_every_operational_one_is_free(run: RunState) -> None:
    for name, drift in field_drifts().items():
        if drift is Drift.OPERATIONAL:
            assert check_drift(run, changed(name), DATASET) == []
        elif drift is Drift.IDENTITY and name != ORIGIN:
            old, new = flatten(CONFIG)[name], other(flatten(CONFIG)[name])
            with pytest.raises(DriftError) as caught:
                check_drift(run, changed(name), DATASET)
            assert f"{name} was {old!r} and is {new!r}" in str(caught.value)
            assert f"allow_drift={name}" in str(caught.value)
            accepted = check_drift(run, chz.replace(changed(name), allow_drift=(name,)), DATASET)
            assert accepted == [{"field": name, "old": old, "new": new}]
            json.dumps(accepted, allow_nan=False)


@pytest.mark.parametrize("name", sorted(FIRST_WEIGHTS))
def test_what_decides_the_first_weights_cannot_drift_before_they_are_journaled(name: str, new_run: RunState) -> None:
    """They may be saved already, under a name that a process of another configuration would take for its own."""
    config = chz.replace(changed(name), allow_drift=(name,))
    with pytest.raises(DriftError, match=f"{re.escape(name)} was .* give another log_path$"):
        check_drift(new_run, config, DATASET)


def test_where_the_weights_came_from_never_drifts(run: RunState) -> None:
    config = chz.replace(changed(ORIGIN), allow_drift=(ORIGIN,))
    with pytest.raises(DriftError, match=r"load_checkpoint_path was None and is 'other'.* give another log_path$"):
        check_drift(run, config, DATASET)


@pytest.mark.parametrize(("state", "least"), [(State.MAYBE_EVALUATE, 1), (State.ROLLOUT, 2), (State.LOG, 2)])
def test_no_process_has_a_horizon_that_what_is_under_way_does_not_fit_in(
    state: State, least: int, tmp_path: Path
) -> None:
    """The horizon may shrink with changed tasks or batch sizes; a batch that has begun is trained all the same."""
    with Journal(tmp_path) as journal:
        advance_to(journal, 1, state)
        with pytest.raises(IllegalStepError, match=f"num_batches is {least - 1}, expected at least {least}"):
            journal.append(Kind.PROCESS_STARTED, **process_started(journal.run, num_batches=least - 1))
        journal.append(Kind.PROCESS_STARTED, **process_started(journal.run, num_batches=least))


def test_h8_every_refused_field_is_named_at_once(run: RunState) -> None:
    config = chz.replace(CONFIG, batch_size=3, lora_rank=64, log_level="debug")
    with pytest.raises(DriftError) as caught:
        check_drift(run, config, DATASET)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "batch_size was 2 and is 3" in message
    assert "lora_rank was 32 and is 64" in message
    assert "allow_drift=lora_rank,batch_size" in message
    assert "log_level" not in message


def test_allowing_one_field_does_not_allow_another(run: RunState) -> None:
    config = chz.replace(CONFIG, batch_size=3, lora_rank=64, allow_drift=("lora_rank",))
    with pytest.raises(DriftError, match="batch_size was 2 and is 3") as caught:
        check_drift(run, config, DATASET)
    assert "lora_rank" not in str(caught.value)


def test_accepted_drift_is_what_later_processes_are_compared_with(run: RunState) -> None:
    config = chz.replace(CONFIG, lora_rank=64, allow_drift=("lora_rank",))
    drift = check_drift(run, config, DATASET)
    add(run, Kind.PROCESS_STARTED, process_started(run, config=flatten(config), drift=drift))
    assert check_drift(run, chz.replace(CONFIG, lora_rank=64), DATASET) == []
    with pytest.raises(DriftError, match="lora_rank was 64 and is 32"):
        check_drift(run, CONFIG, DATASET)


@pytest.mark.parametrize(
    ("field", "value", "grows"),
    [
        ("n_epochs", 3, True),
        ("n_epochs", 1, False),
        ("max_batches", 11, True),
        ("max_batches", None, True),
        ("max_batches", 9, False),
    ],
)
def test_a_horizon_may_only_grow(run: RunState, field: str, value: int | None, grows: bool) -> None:
    config = chz.replace(CONFIG, **{field: value})
    if grows:
        assert check_drift(run, config, DATASET) == []
        return
    with pytest.raises(DriftError, match=f"{field} was .* and is {value}"):
        check_drift(run, config, DATASET)
    assert check_drift(run, chz.replace(config, allow_drift=(field,)), DATASET)[0]["new"] == value


def test_all_epochs_cannot_become_fewer_batches() -> None:
    run = RunState()
    add(run, Kind.RUN_STARTED, run_started(config=flatten(chz.replace(CONFIG, max_batches=None))))
    with pytest.raises(DriftError, match="max_batches was None and is 10"):
        check_drift(run, CONFIG, DATASET)


def test_h24_a_changed_task_is_refused_naming_the_dataset_fingerprint(run: RunState) -> None:
    edited = DATASET | {"train": {"rows": 48, "sha256": "99" * 32}}
    with pytest.raises(DriftError) as caught:
        check_drift(run, CONFIG, edited)
    assert "the dataset fingerprint was train: 48 rows sha256 abababababab, val: 5 rows" in str(caught.value)
    assert "and is train: 48 rows sha256 999999999999" in str(caught.value)
    assert "allow_drift=dataset" in str(caught.value)
    drift = check_drift(run, chz.replace(CONFIG, allow_drift=("dataset",)), edited)
    assert drift == [{"field": "dataset", "old": DATASET, "new": edited}]
    add(run, Kind.PROCESS_STARTED, process_started(run, drift=drift))
    assert check_drift(run, CONFIG, edited) == []


def test_validation_tasks_that_appear_are_drift(run: RunState) -> None:
    with pytest.raises(DriftError, match="and is train: 48 rows sha256 abababababab, val: none"):
        check_drift(run, CONFIG, DATASET | {"val": None})


def fail(run: RunState, error: str) -> None:
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed", error))
    add(run, Kind.PROCESS_STARTED, process_started(run))


def test_the_same_state_failing_max_attempts_times_stops_the_run_with_a_diagnosis(run: RunState) -> None:
    for attempt in range(3):
        check_attempts(run, CONFIG)
        fail(run, f"ValueError: boom {attempt}")
    with pytest.raises(TooManyAttemptsError) as caught:
        check_attempts(run, CONFIG)
    assert caught.value.exit_code == 3
    assert "MaybeEvaluate of batch 0 failed 3 times" in str(caught.value)
    assert "ValueError: boom 2" in str(caught.value)
    assert "max_attempts=4" in str(caught.value)
    check_attempts(run, chz.replace(CONFIG, max_attempts=4))


def test_a_kill_is_no_failed_attempt(run: RunState) -> None:
    for _ in range(10):
        add(run, Kind.STATE_ENTERED, state_entered(run))
        add(run, Kind.PROCESS_STARTED, process_started(run))
    assert run.kills == 10
    check_attempts(run, CONFIG)


def test_a_field_that_is_younger_than_the_run_was_at_its_default() -> None:
    run, younger = RunState(), {"evals", "pass_threshold"}
    config = {name: value for name, value in flatten(CONFIG).items() if name not in younger}
    add(run, Kind.RUN_STARTED, run_started(config=config))
    add(run, Kind.PROCESS_STARTED, process_started(run, config=config))
    assert check_drift(run, CONFIG, DATASET) == []
    with pytest.raises(DriftError, match=r"pass_threshold was 1\.0 and is 4711"):
        check_drift(run, changed("pass_threshold"), DATASET)
