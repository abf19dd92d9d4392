"""The machine alone: bodies that do nothing, a real journal, and what holds whatever the bodies do."""

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import structlog
from transitions import MachineError

from orchestrator.config import Config
from orchestrator.context import Body, Recorder, Resources, StateContext, StateResult
from orchestrator.disk import DISK, Disk
from orchestrator.errors import ClientLostError, JournalWriteError, RefusedError, StateFailedError, StopRequested
from orchestrator.journal.log import Journal, read_journal
from orchestrator.journal.records import Kind, Record
from orchestrator.machine import StateMachine, build_table
from orchestrator.names import CYCLE, TRANSITIONS, State
from orchestrator.testing import AtStep, Fault, FaultyDisk

NUM_BATCHES = 2
MAX_ATTEMPTS = 3
RESULTS: Mapping[State, Mapping[str, Any]] = {
    State.PUBLISH_MODEL: {"policy_version": 0, "sampler_path": "local://run/sampler_weights/000000"},
    State.TRAIN_STEP: {"skipped": False},
    State.SWAP_SAMPLER: {"policy_version": 0, "sampler_path": "local://run/sampler_weights/000000"},
}


def idle(state: State) -> Body:
    """A body that gives at once what the journal needs to know of its state."""

    async def body(_context: StateContext) -> StateResult:
        return StateResult(RESULTS.get(state, {}))

    return body


IDLE: Mapping[State, Body] = {state: idle(state) for state in CYCLE}


class Bench:
    """One process at work on a run of trivial bodies."""

    def __init__(
        self,
        log_path: Path,
        bodies: Mapping[State, Body] = IDLE,
        *,
        observer: Callable[[str], None] = lambda _point: None,
        disk: Disk = DISK,
        timeout_seconds: float = 60.0,
        grace_seconds: float = 60.0,
    ) -> None:
        """``bodies`` replaces some of the trivial ones."""
        self.given_up = 0
        self.journal = Journal(log_path, observer=observer, disk=disk)
        self.stop = asyncio.Event()
        self.entered: list[tuple[int, State]] = []
        if not self.journal.records:
            self.journal.append(
                Kind.RUN_STARTED,
                run_id="r",
                config={},
                dataset={},
                num_batches=NUM_BATCHES,
                schedule_batches=NUM_BATCHES,
                versions={},
            )
        self.journal.append(
            Kind.PROCESS_STARTED,
            pid=1,
            host="here",
            resumed_from=None,
            attempt=self.journal.run.processes,
            config={},
            drift=[],
            num_batches=NUM_BATCHES,
        )

        def enter(entered: Record) -> StateContext:
            run = self.journal.run
            self.entered.append((run.batch, run.state))
            assert (entered.fields["batch"], entered.fields["state"]) == (run.batch, run.state)
            resources = cast("Resources", None)  # bodies of this bench use none
            log = structlog.get_logger()
            return StateContext(
                Config(agent="none:none"), log_path, run, resources, Recorder(self.journal), log, self.stop
            )

        self.machine = StateMachine(
            self.journal,
            {**IDLE, **bodies},
            enter,
            self._give_up_client,
            stop=self.stop,
            state_timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
            max_attempts=MAX_ATTEMPTS,
        )

    def _give_up_client(self) -> None:
        self.given_up += 1


async def test_the_fold_of_the_journal_is_the_live_machine_after_every_step(tmp_path: Path) -> None:
    """Two machines in one: at each append the file, folded anew, stands where the machine's own fold stands."""
    places: list[tuple[int, State]] = []

    def compare(point: str) -> None:
        if point.startswith("append:after:"):
            folded = read_journal(tmp_path).run
            assert folded == bench.journal.run
            places.append((folded.batch, folded.state))

    bench = Bench(tmp_path)
    bench.journal._observer = compare
    await bench.machine.drive()
    assert bench.machine.state == State.FINISHED == bench.journal.run.state
    expected = [(batch, state) for batch in range(NUM_BATCHES) for state in CYCLE]
    expected += [(NUM_BATCHES, State.PUBLISH_MODEL), (NUM_BATCHES, State.MAYBE_EVALUATE)]
    assert bench.entered == expected
    assert places[::2] == expected
    assert places[1::2] == [*expected[1:], (NUM_BATCHES, State.FINISHED)]


class Mover:
    """A model for the bare table."""

    state: str
    advance: Callable[..., bool]

    def __init__(self, *, remain: bool) -> None:
        self.committed: list[tuple[str, str]] = []
        self._remain = remain

    def batches_remain(self, _event: Any) -> bool:
        """As the test says."""
        return self._remain

    def commit(self, event: Any) -> None:
        """Notes the move."""
        self.committed.append((event.transition.source, event.transition.dest))


@pytest.mark.parametrize("remain", [True, False])
@pytest.mark.parametrize("state", State)
def test_every_move_that_is_made_is_in_the_table_and_there_is_no_other_way_to_move(state: State, remain: bool) -> None:
    mover = Mover(remain=remain)
    build_table(mover, initial=state)
    if state is State.FINISHED:
        with pytest.raises(MachineError):
            mover.advance()
        assert mover.state == State.FINISHED
        return
    mover.advance()
    wanted = {"none remain"} if not remain else {"batches remain"}
    (move,) = [
        move for move in TRANSITIONS if move.source is state and (move.when.startswith("always") or move.when in wanted)
    ]
    assert mover.committed == [(move.source, move.dest)]
    assert mover.state == move.dest
    assert not [name for name in dir(mover) if name.startswith("to_")]


@pytest.mark.parametrize("source", CYCLE)
@pytest.mark.parametrize("dest", State)
async def test_the_journal_takes_no_transition_that_is_not_in_the_table(
    source: State, dest: State, tmp_path: Path
) -> None:
    """Where ``transitions`` could be misled, the fold refuses: batch 0 of 2, from each state to each other."""
    bench = Bench(tmp_path, {source: refuse_to_run})
    with pytest.raises(StateFailedError):
        await bench.machine.drive()
    legal = {move.dest for move in TRANSITIONS if move.source is source and move.when != "none remain"}
    fields = {"batch": 0, "source": source, "dest": dest, "attempt": 0, "seconds": 0.0}
    size_bytes = bench.journal.path.stat().st_size
    if dest in legal:
        bench.journal.append(Kind.TRANSITION, **fields, result=dict(RESULTS.get(source, {})))
        assert bench.journal.run.state is dest
    else:
        with pytest.raises(RefusedError):
            bench.journal.append(Kind.TRANSITION, **fields, result=dict(RESULTS.get(source, {})))
        assert bench.journal.path.stat().st_size == size_bytes


async def refuse_to_run(_context: StateContext) -> StateResult:
    """A body that fails."""
    raise ValueError("the body fails as planned")


@pytest.mark.parametrize("kind", [Kind.STATE_ENTERED, Kind.TRANSITION])
async def test_an_append_that_fails_leaves_the_machine_where_it_was(kind: Kind, tmp_path: Path) -> None:
    """The journal's file is closed under it right before the third state's record."""
    seen = []

    def close_before(point: str) -> None:
        seen.append(point)
        if seen.count(f"append:before:{kind}") == 3:
            bench.journal.close()

    bench = Bench(tmp_path)
    bench.journal._observer = close_before
    with pytest.raises(JournalWriteError):
        await bench.machine.drive()
    assert bench.machine.state == State.ROLLOUT == bench.journal.run.state
    resumed = Bench(tmp_path)
    assert resumed.machine.state == State.ROLLOUT
    await resumed.machine.drive()
    assert resumed.entered[0] == (0, State.ROLLOUT)
    assert resumed.journal.run.state is State.FINISHED


@pytest.mark.parametrize("fault", Fault)
async def test_no_step_of_the_disk_can_fail_and_move_the_machine(fault: Fault, tmp_path: Path) -> None:
    """Every write and sync of a run in turn: what raised has not happened, and the next process goes on from there."""
    failures = 0
    for number in itertools.count():
        log_path = tmp_path / str(number)
        try:
            bench = Bench(log_path, disk=FaultyDisk(fault, AtStep(number)))
            await bench.machine.drive()
        except JournalWriteError:
            failures += 1
        else:
            break
        resumed = Bench(log_path)
        stood = resumed.journal.run
        assert (stood.batch, stood.state) == (read_journal(log_path).run.batch, resumed.machine.state)
        before = (stood.batch, State(resumed.machine.state))
        await resumed.machine.drive()
        assert resumed.entered[0] == before
        assert resumed.journal.run.state is State.FINISHED
    steps_of_a_record = 2 if fault is Fault.EIO else 1  # write and sync; a full disk fails at writes only
    assert failures > steps_of_a_record * 2 * NUM_BATCHES * len(CYCLE)


async def test_a_body_that_raises_stops_the_run_in_its_state_and_says_which(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {State.TRAIN_STEP: refuse_to_run})
    with pytest.raises(StateFailedError, match=r"batch 0, state TrainStep: ValueError at test_machine\.py:\d+\."):
        await bench.machine.drive()
    assert bench.machine.state == State.TRAIN_STEP == read_journal(tmp_path).run.state


async def test_an_error_of_ours_travels_as_it_is(tmp_path: Path) -> None:
    async def body(_context: StateContext) -> StateResult:
        raise RefusedError("not like this")

    with pytest.raises(RefusedError, match="not like this"):
        await Bench(tmp_path, {State.LOG: body}).machine.drive()


async def test_a_body_past_its_deadline_is_cancelled_and_the_state_stays(tmp_path: Path) -> None:
    cancelled = asyncio.Event()

    async def body(_context: StateContext) -> StateResult:
        try:
            return StateResult({"never": await asyncio.Event().wait()})
        finally:
            cancelled.set()

    bench = Bench(tmp_path, {State.ROLLOUT: body}, timeout_seconds=0.05)
    with pytest.raises(StateFailedError, match=r"batch 0, state Rollout: not done after state_timeout_seconds=0\.05"):
        await bench.machine.drive()
    assert cancelled.is_set()
    assert bench.machine.state == State.ROLLOUT == read_journal(tmp_path).run.state


async def test_a_body_that_ends_within_the_grace_is_journaled_and_nothing_is_entered_after_it(tmp_path: Path) -> None:
    async def body(context: StateContext) -> StateResult:
        context.stop.set()
        await asyncio.sleep(0)
        return StateResult({})

    bench = Bench(tmp_path, {State.ROLLOUT: body})
    with pytest.raises(StopRequested):
        await bench.machine.drive()
    run = read_journal(tmp_path).run
    assert (run.state, run.entered) == (State.TRAIN_STEP, False)


async def test_a_body_that_outlasts_the_grace_is_cancelled_and_its_state_stays(tmp_path: Path) -> None:
    async def body(context: StateContext) -> StateResult:
        context.stop.set()
        return StateResult({"never": await asyncio.Event().wait()})

    bench = Bench(tmp_path, {State.ROLLOUT: body}, grace_seconds=0.05)
    with pytest.raises(StopRequested):
        await bench.machine.drive()
    assert bench.machine.state == State.ROLLOUT == read_journal(tmp_path).run.state


async def test_a_state_that_loses_the_training_client_is_entered_again_and_each_loss_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice in batch 0, and in batch 1 as often as it takes; ``max_attempts`` is 3, and counts a state's own."""
    monkeypatch.setattr("orchestrator.machine.SECOND_TRY_SECONDS", 0.01)
    tries: dict[int, int] = {0: 0, 1: 0}

    async def body(context: StateContext) -> StateResult:
        tries[context.batch] += 1
        if context.batch == 1 or tries[0] <= 2:
            raise ClientLostError("train step: it is gone")
        return StateResult(RESULTS[State.TRAIN_STEP])

    bench = Bench(tmp_path, {State.TRAIN_STEP: body})
    with pytest.raises(ClientLostError, match=r"batch 1, state TrainStep: .* failed 3 times; .* max_attempts than 3"):
        await bench.machine.drive()
    assert (tries, bench.given_up) == ({0: 3, 1: 3}, 4)
    run = read_journal(tmp_path).run
    assert (run.batch, run.state, run.failures, run.lost_clients) == (1, State.TRAIN_STEP, 2, 4)
    bench.journal.append(Kind.PROCESS_STOPPED, reason="failed", batch=1, state=State.TRAIN_STEP, error="it is gone")
    assert bench.journal.run.failures == MAX_ATTEMPTS, "the last loss is counted by the end of the process"


async def test_a_stop_is_heard_while_a_lost_training_client_waits_to_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.machine.SECOND_TRY_SECONDS", 3_600.0)
    entries = 0

    async def body(_context: StateContext) -> StateResult:
        nonlocal entries
        entries += 1
        if entries == 2:
            asyncio.get_running_loop().call_soon(bench.stop.set)
        raise ClientLostError("it is gone")

    bench = Bench(tmp_path, {State.PUBLISH_MODEL: body})
    with pytest.raises(StopRequested):
        await asyncio.wait_for(bench.machine.drive(), 30)
