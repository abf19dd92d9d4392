"""Laws of the fold: only legal steps are taken, and where the run stands follows from them alone."""

import itertools
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from journal.walk import (
    NUM_BATCHES,
    checkpoint_saved,
    next_record,
    process_started,
    process_stopped,
    result,
    run_started,
    state_entered,
    transition,
)

from orchestrator.journal.records import Kind, Record, decode, encode
from orchestrator.journal.recovery import RESULT_NEEDS, Checkpoint, IllegalStepError, RunState, Stop, fold
from orchestrator.names import CYCLE, INITIAL_STATE, TRANSITIONS, State, next_state

AT = "2026-11-30T11:02:03.123456Z"
PLACES = [*itertools.product(range(NUM_BATCHES), CYCLE)] + [
    (NUM_BATCHES, state) for state in (State.PUBLISH_MODEL, State.MAYBE_EVALUATE)
]
"""Every place at which a run of three batches has a state to enter."""


def add(run: RunState, kind: Kind, fields: dict[str, Any]) -> Record:
    """Takes ``run`` one record further, through the form in which it would be stored."""
    record = decode(encode(Record(run.num_records, AT, kind, fields)))
    run.apply(record)
    return record


def run_at(batch: int, state: State, *, entered: bool = False) -> RunState:
    """A run that has come to this place undisturbed."""
    run = RunState()
    while (run.batch, run.state, run.entered) != (batch, state, entered) or not run.running:
        add(run, *next_record(run))
    return run


def refuse(run: RunState, kind: Kind, fields: dict[str, Any], problem: str = "") -> None:
    """``run`` refuses the record, names it and is left as it was."""
    before = deepcopy(run)
    with pytest.raises(IllegalStepError, match=problem) as caught:
        add(run, kind, fields)
    assert str(caught.value).startswith(f"record {run.num_records} ({kind}): ")
    assert (caught.value.seq, caught.value.exit_code) == (run.num_records, 3)
    assert run == before


def test_a_run_begins_where_the_machine_begins() -> None:
    run = fold([])
    assert (run.batch, run.state, run.run_id, run.policy_version) == (0, INITIAL_STATE, "", None)


def test_an_undisturbed_run_goes_through_every_place_once_and_finishes() -> None:
    run, places = RunState(), []
    while not run.finished:
        kind, fields = next_record(run)
        add(run, kind, fields)
        if kind is Kind.STATE_ENTERED:
            places.append((run.batch, run.state))
    assert places == PLACES
    assert (run.batch, run.state, run.kills, run.processes) == (NUM_BATCHES, State.FINISHED, 0, 1)
    assert set(run.batches[1].results) == set(run.batches[1].seconds) == set(CYCLE)
    assert run.result(1, State.TRAIN_STEP) == {"skipped": False, "optim_steps": 1, "trained_tokens": 1001}
    assert run.result(9, State.TRAIN_STEP) is None


@pytest.mark.parametrize(("batch", "state"), PLACES)
def test_of_all_transitions_only_the_next_one_is_taken(batch: int, state: State) -> None:
    run = run_at(batch, state, entered=True)
    for source, dest in itertools.product(State, State):
        if (source, dest) != (state, next_state(state, batch=batch, num_batches=NUM_BATCHES)):
            refuse(run, Kind.TRANSITION, transition(run, source=source, dest=dest), "expected")
    for other_batch in {0, batch - 1, batch + 1} - {-1, batch}:
        refuse(run, Kind.TRANSITION, transition(run, batch=other_batch), f"batch is {other_batch}, expected {batch}")
    refuse(run, Kind.TRANSITION, transition(run, attempt=1), "attempt is 1, expected 0")
    refuse(run, Kind.STATE_ENTERED, state_entered(run), "entered already")
    add(run, Kind.TRANSITION, transition(run))


def test_the_fold_takes_every_transition_of_the_table_and_no_other() -> None:
    run, taken = RunState(), set()
    while not run.finished:
        kind, fields = next_record(run)
        if kind is Kind.TRANSITION:
            taken.add((fields["source"], fields["dest"]))
        add(run, kind, fields)
    assert taken == {(legal.source, legal.dest) for legal in TRANSITIONS}


@pytest.mark.parametrize(("batch", "state"), PLACES)
def test_only_the_current_state_can_be_entered_and_only_once_a_process(batch: int, state: State) -> None:
    run = run_at(batch, state)
    for other in set(State) - {state}:
        refuse(run, Kind.STATE_ENTERED, state_entered(run, state=other), f"expected {state}")
    refuse(run, Kind.STATE_ENTERED, state_entered(run, batch=batch + 1), f"expected {batch}")
    refuse(run, Kind.STATE_ENTERED, state_entered(run, attempt=1), "attempt is 1, expected 0")
    refuse(run, Kind.TRANSITION, transition(run, attempt=0), "has not been entered by this process")
    add(run, Kind.STATE_ENTERED, state_entered(run))


@pytest.mark.parametrize(("batch", "state"), PLACES)
def test_a_killed_process_s_entry_does_not_count_for_the_next_one(batch: int, state: State) -> None:
    run = run_at(batch, state, entered=True)
    add(run, Kind.PROCESS_STARTED, process_started(run))
    assert (run.batch, run.state, run.entries, run.kills) == (batch, state, 1, 1)
    refuse(run, Kind.TRANSITION, transition(run), "has not been entered by this process")
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.TRANSITION, transition(run))
    assert run.entries == 0


@pytest.mark.parametrize("state", RESULT_NEEDS)
def test_a_result_without_what_the_fold_needs_is_refused(state: State) -> None:
    run = run_at(1, state, entered=True)
    for name, expected in RESULT_NEEDS[state].items():
        problem = rf"result\.{name} of {state}, batch 1, is None, expected {expected.__name__}"
        for bad in ({key: value for key, value in result(run).items() if key != name}, result(run) | {name: None}):
            refuse(run, Kind.TRANSITION, transition(run, result=bad), problem)


def test_nothing_comes_before_the_start_and_the_run_starts_once() -> None:
    run = RunState()
    for kind, fields in [
        (Kind.PROCESS_STARTED, process_started(run)),
        (Kind.STATE_ENTERED, state_entered(run)),
        (Kind.TRANSITION, transition(run, attempt=0)),
        (Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "initial")),
        (Kind.PROCESS_STOPPED, process_stopped(run, "failed")),
        (Kind.RUN_FINISHED, {"batches": 0}),
    ]:
        refuse(run, kind, fields, "expected run_started first")
    add(run, Kind.RUN_STARTED, run_started())
    refuse(run, Kind.RUN_STARTED, run_started(), "run run-1 has already started")


def lost(name: str) -> dict[str, Any]:
    return {"batch": 1, "name": name, "state_path": "p", "reason": "404"}


def test_only_a_running_process_writes() -> None:
    run = run_at(1, State.ROLLOUT)
    add(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "000001"))
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "interrupted"))
    for kind, fields in [
        (Kind.STATE_ENTERED, state_entered(run)),
        (Kind.TRANSITION, transition(run, attempt=0)),
        (Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "000002")),
        (Kind.CHECKPOINT_LOST, lost("000001")),
        (Kind.PROCESS_STOPPED, process_stopped(run, "interrupted")),
        (Kind.RUN_FINISHED, {"batches": NUM_BATCHES}),
    ]:
        refuse(run, kind, fields, "no process has started since the last one stopped")
    refuse(run, Kind.PROCESS_STARTED, process_started(run, attempt=0), "attempt is 0, expected 1")


def test_after_the_end_there_are_only_processes_that_find_nothing_to_do() -> None:
    run = run_at(NUM_BATCHES, State.MAYBE_EVALUATE, entered=True)
    add(run, Kind.TRANSITION, transition(run))
    refuse(run, Kind.STATE_ENTERED, state_entered(run), "no body")
    refuse(run, Kind.RUN_FINISHED, {"batches": NUM_BATCHES + 1}, "batches is 4, expected 3")
    add(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "final", checkpoint_kind="final"))
    add(run, Kind.RUN_FINISHED, {"batches": NUM_BATCHES})
    for _ in range(2):
        for kind, fields in [
            (Kind.STATE_ENTERED, state_entered(run)),
            (Kind.TRANSITION, transition(run_at(0, State.ROLLOUT, entered=True))),
            (Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "late")),
            (Kind.CHECKPOINT_LOST, lost("final")),
            (Kind.RUN_FINISHED, {"batches": NUM_BATCHES}),
        ]:
            refuse(run, kind, fields, "the run has finished")
        add(run, Kind.PROCESS_STOPPED, process_stopped(run, "finished"))
        add(run, Kind.PROCESS_STARTED, process_started(run))
    assert run.finished


@pytest.mark.parametrize(("batch", "state"), PLACES)
def test_a_run_is_not_finished_before_its_end(batch: int, state: State) -> None:
    refuse(run_at(batch, state), Kind.RUN_FINISHED, {"batches": NUM_BATCHES}, f"the run is in {state} of batch {batch}")


def test_a_fork_begins_at_its_batch_and_has_none_before() -> None:
    fork = {"log_path": "/runs/a", "run_id": "a" * 32, "batch": 2, "seq": 9, "sha256": "b" * 64, "changed": []}
    beyond = run_started(forked_from=fork | {"batch": NUM_BATCHES + 1})
    refuse(RunState(), Kind.RUN_STARTED, beyond, f"begins at batch {NUM_BATCHES + 1} of {NUM_BATCHES}")
    run = RunState()
    add(run, Kind.RUN_STARTED, run_started(forked_from=fork))
    assert (run.batch, run.state, run.first_batch, run.trained_batches) == (2, INITIAL_STATE, 2, 2)
    while not run.finished:
        add(run, *next_record(run))
    assert sorted(run.batches) == [2, 3]


def test_records_are_taken_in_order() -> None:
    run = run_at(0, State.ROLLOUT)
    for seq in (run.num_records - 1, run.num_records + 1):
        with pytest.raises(IllegalStepError, match=f"seq is {seq}, expected {run.num_records}"):
            run.apply(Record(seq, AT, Kind.STATE_ENTERED, state_entered(run)))


def test_a_grown_horizon_reopens_a_finished_run_where_its_evaluation_ended() -> None:
    run = run_at(NUM_BATCHES, State.MAYBE_EVALUATE, entered=True)
    add(run, Kind.TRANSITION, transition(run))
    add(run, Kind.RUN_FINISHED, {"batches": NUM_BATCHES})
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "finished"))
    add(run, Kind.PROCESS_STARTED, process_started(run, num_batches=NUM_BATCHES + 2))
    assert (run.batch, run.state, run.finished, run.num_batches) == (NUM_BATCHES, State.ROLLOUT, False, NUM_BATCHES + 2)
    assert run.schedule_batches == NUM_BATCHES, "the learning-rate schedule is that of the start"
    while not run.finished:
        add(run, *next_record(run))
    assert run.batch == NUM_BATCHES + 2


def test_the_horizon_is_that_of_the_newest_process() -> None:
    run = run_at(1, State.LOG)
    add(run, Kind.PROCESS_STARTED, process_started(run, num_batches=9, config={"group_size": 2}))
    assert (run.num_batches, run.config, run.batch, run.state) == (9, {"group_size": 2}, 1, State.LOG)


def test_accepted_dataset_drift_becomes_the_dataset() -> None:
    run = run_at(1, State.LOG)
    changed = {"train": {"rows": 50, "sha256": "ef" * 32}, "val": None}
    drift = [{"field": "seed", "old": 1, "new": 2}, {"field": "dataset", "old": run.dataset, "new": changed}]
    add(run, Kind.PROCESS_STARTED, process_started(run, drift=drift))
    assert run.dataset == changed


def test_failures_are_those_inside_the_current_state_since_it_was_reached() -> None:
    run = run_at(1, State.ROLLOUT)
    for failures in (1, 2):
        add(run, Kind.STATE_ENTERED, state_entered(run))
        add(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed", f"boom {failures}"))
        assert (run.failures, run.entries, run.last_stop) == (failures, failures, Stop("failed", f"boom {failures}"))
        add(run, Kind.PROCESS_STARTED, process_started(run))
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed", "the port is taken"))
    add(run, Kind.PROCESS_STARTED, process_started(run))
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.PROCESS_STOPPED, process_stopped(run, "interrupted"))
    add(run, Kind.PROCESS_STARTED, process_started(run))
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.PROCESS_STARTED, process_started(run))
    assert (run.failures, run.kills, run.processes) == (2, 1, 6), "neither start-up, signals nor kills are failures"
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.TRANSITION, transition(run))
    assert (run.failures, run.entries) == (0, 0)


def test_a_process_stops_where_the_run_stands() -> None:
    run = run_at(1, State.ROLLOUT)
    refuse(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed") | {"batch": 2}, "batch is 2, expected 1")
    refuse(run, Kind.PROCESS_STOPPED, process_stopped(run, "failed") | {"state": "Log"}, "state is Log")


def train(run: RunState, *, skipped: bool) -> None:
    while run.state is not State.TRAIN_STEP or not run.entered:
        add(run, *next_record(run))
    add(run, Kind.TRANSITION, transition(run, result={"skipped": skipped}))


def test_batches_without_progress_are_counted_in_a_row_and_in_one_process() -> None:
    run = RunState()
    add(run, Kind.RUN_STARTED, run_started(num_batches=20))
    counts = []
    for skipped in (True, True, False, True, True, True):
        train(run, skipped=skipped)
        counts.append(run.no_progress_batches)
    assert counts == [1, 2, 0, 1, 2, 3]
    add(run, Kind.PROCESS_STARTED, process_started(run))
    assert run.no_progress_batches == 0
    train(run, skipped=True)
    assert run.no_progress_batches == 1


def test_the_policy_to_serve_is_the_first_published_then_the_one_swapped_in_last() -> None:
    run, seen = RunState(), {}
    while not run.finished:
        add(run, *next_record(run))
        seen[run.batch, run.state] = (run.policy_version, run.sampler_path)
    assert seen[0, State.PUBLISH_MODEL] == (None, None)
    assert seen[0, State.ROLLOUT] == seen[0, State.SWAP_SAMPLER] == (0, "local://sampler/0")
    assert seen[1, State.PUBLISH_MODEL] == seen[1, State.ROLLOUT] == (1, "local://sampler/1")
    assert seen[NUM_BATCHES, State.FINISHED] == (NUM_BATCHES, f"local://sampler/{NUM_BATCHES}")


def test_live_checkpoints_are_those_saved_and_not_lost_oldest_first() -> None:
    run = run_at(2, State.SWAP_SAMPLER, entered=True)
    for name, batch in (("000001", 1), ("000002", 2), ("000003-rolling", 3)):
        add(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, name, batch=batch, sampler_path="s"))
    assert run.checkpoints[0] == Checkpoint(1, "000001", "periodic", "local://weights/000001", "s", None)
    add(run, Kind.CHECKPOINT_LOST, lost("000002"))
    assert [checkpoint.name for checkpoint in run.checkpoints] == ["000001", "000003-rolling"]
    refuse(run, Kind.CHECKPOINT_LOST, lost("000002"), "no live checkpoint is named 000002")
    refuse(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "early", batch=4), "batch is 4, expected at most 3")


def test_a_checkpoint_saved_again_by_the_next_process_is_one_checkpoint() -> None:
    """The window: a process dies after a save is journaled and before its state is left; the next saves it again."""
    run = run_at(2, State.SWAP_SAMPLER, entered=True)
    add(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "000003", batch=3))
    add(run, Kind.PROCESS_STARTED, process_started(run))
    add(run, Kind.STATE_ENTERED, state_entered(run))
    add(run, Kind.CHECKPOINT_SAVED, checkpoint_saved(run, "000003", batch=3, expires_at="2026-12-07T00:00:00Z"))
    assert [(live.name, live.expires_at) for live in run.checkpoints] == [("000003", "2026-12-07T00:00:00Z")]


@pytest.mark.parametrize("build", [lambda: run_at(2, State.LOG), lambda: run_at(0, State.PUBLISH_MODEL, entered=True)])
def test_checking_changes_nothing(build: Callable[[], RunState], tmp_path: Path) -> None:
    run = build()
    before = deepcopy(run)
    kind, fields = next_record(run)
    run.check(Record(run.num_records, AT, kind, fields))
    assert run == before
