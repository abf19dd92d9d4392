"""The fold: from the records of a journal to where the run stands, refusing every record that is no legal step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import RefusedError
from orchestrator.journal.records import Kind, Record
from orchestrator.names import INITIAL_STATE, State, next_state

RESULT_NEEDS: Mapping[State, Mapping[str, type]] = {
    State.PUBLISH_MODEL: {"policy_version": int, "sampler_path": str},
    State.TRAIN_STEP: {"skipped": bool},
    State.SWAP_SAMPLER: {"policy_version": int, "sampler_path": str},
}
"""What the fold relies on in the results of states; everything else there is the states' own business."""


class IllegalStepError(RefusedError):
    """A record that cannot follow the ones before it."""

    def __init__(self, record: Record, problem: str) -> None:
        """``problem`` says what was found and what was expected."""
        super().__init__(f"record {record.seq} ({record.kind}): {problem}")
        self.seq, self.problem = record.seq, problem


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that the journal holds to be alive."""

    batch: int
    """Batches trained in it, and so the batch that a restore continues with."""
    name: str
    checkpoint_kind: str
    """initial, periodic, rolling or final."""
    state_path: str
    """Weights and optimizer."""
    sampler_path: str | None
    """None: saved for restoring only."""
    expires_at: str | None
    """ISO date and time; None: never."""


@dataclass(frozen=True, slots=True)
class ForkedFrom:
    """Where a run that was forked from another one begins."""

    log_path: str
    """The parent's run directory when the fork was made, absolute."""
    run_id: str
    """The parent's."""
    batch: int
    """The fork's first: it begins with the parent's weights after so many batches."""
    seq: int
    """Of the parent's last record that decides these weights."""
    sha256: str
    """Of the parent's journal up to and with that record, which never changes in a run that is still that parent."""
    changed: list[dict[str, Any]]
    """``{"field", "old", "new"}`` for each identity field, and the dataset, that differs from the parent's."""


@dataclass(slots=True)
class BatchFacts:
    """What the journal knows of one batch: of each state that was left, its result and how long it took."""

    results: dict[State, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[State, float] = field(default_factory=dict)


@dataclass(slots=True)
class Stop:
    """The last words of a process."""

    reason: str
    """interrupted, failed, refused, finished or budget."""
    error: str | None


@dataclass(slots=True)
class RunState:
    """Where a run stands, as its journal tells it; ``apply`` takes it one record further, in place.

    Recovery is idempotent because this is a pure function of the records: it looks at no clock, file or service, each
    record is accepted only as the one legal step after those before it, and reading writes nothing. A process that
    dies during recovery leaves the journal either as it was or one whole record longer, and the next one folds that.
    """

    num_records: int = 0
    """How many records this is the fold of, and so the seq of the next."""
    run_id: str = ""
    """Empty: no run has started."""
    config: dict[str, Any] = field(default_factory=dict)
    """Flat; that of the newest process, which holds whatever drift was accepted."""
    dataset: dict[str, Any] = field(default_factory=dict)
    """{"train": {"rows", "sha256"}, "val": the same or None, "test/NAME": ...}, with accepted drift."""
    versions: dict[str, str] = field(default_factory=dict)
    num_batches: int = 0
    """The newest process's horizon."""
    schedule_batches: int = 0
    """The batches the learning-rate schedule was laid out for when the run started."""
    forked_from: ForkedFrom | None = None
    """None: the run began at batch 0, with weights of its own."""

    batch: int = 0
    state: State = INITIAL_STATE
    entries: int = 0
    """How often the current batch and state have been entered."""
    entered: bool = False
    """Whether the current process has entered the current state."""
    failures: int = 0
    """How often the current batch and state failed: processes that ended inside it, and training clients lost there."""
    finished: bool = False
    extensions: int = 0
    """How often a run that had come to its end was given more batches."""

    processes: int = 0
    running: bool = False
    """Whether the newest process has not said that it stopped: it is alive, or was killed."""
    kills: int = 0
    """Processes that a later one found to have ended without a word."""
    optimizer_restores: bool | None = None
    """What the newest probe of the backend found; None: none was made."""
    lost_clients: int = 0
    """Training clients that were lost and made again without a restart of the process."""
    last_stop: Stop | None = None
    no_progress_batches: int = 0
    """Train steps in a row that were skipped, in the newest process."""

    batches: dict[int, BatchFacts] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """The live ones, oldest first."""
    policy_version: int | None = None
    """Of the newest published or swapped-in policy; None before the first."""
    sampler_path: str | None = None
    """The sampler of that policy."""

    @property
    def first_batch(self) -> int:
        """The batch that the run began with; those before it are its parent's."""
        return 0 if self.forked_from is None else self.forked_from.batch

    @property
    def trained_batches(self) -> int:
        """After how many batches the newest weights are that the journal knows."""
        return self.batch + (self.state in {State.SWAP_SAMPLER, State.LOG})

    @property
    def least_batches(self) -> int:
        """The shortest horizon that what is under way fits in: a batch whose rollouts have begun is trained."""
        begun = self.state not in {State.PUBLISH_MODEL, State.MAYBE_EVALUATE, State.FINISHED}
        return self.batch + begun

    def result(self, batch: int, state: State) -> dict[str, Any] | None:
        """What ``state`` reported when it was left in ``batch``; None: it was not."""
        facts = self.batches.get(batch)
        return None if facts is None else facts.results.get(state)

    def check(self, record: Record) -> None:
        """Changes nothing.

        Raises:
            IllegalStepError: ``record`` is no legal step from here.
        """
        problem = self._problem(record)
        if problem is not None:
            raise IllegalStepError(record, problem)

    def apply(self, record: Record) -> None:
        """Takes in one record.

        Raises:
            IllegalStepError: it is no legal step from here; nothing has changed.
        """
        self.check(record)
        self.take(record)

    def take(self, record: Record) -> None:
        """Takes in one record that ``check`` has let through."""
        self.num_records += 1
        fields = record.fields
        match record.kind:
            case Kind.RUN_STARTED:
                self.run_id, self.config, self.dataset = fields["run_id"], fields["config"], fields["dataset"]
                self.num_batches, self.schedule_batches = fields["num_batches"], fields["schedule_batches"]
                self.versions = fields["versions"]
                if "forked_from" in fields:
                    self.forked_from = ForkedFrom(**fields["forked_from"])
                    self.batch = self.first_batch
            case Kind.PROCESS_STARTED:
                self._start_process(fields)
            case Kind.STATE_ENTERED:
                self.entered = True
                self.entries += 1
            case Kind.TRANSITION:
                self._move(fields)
            case Kind.CHECKPOINT_SAVED:
                self._forget_checkpoint(fields["name"])
                self.checkpoints.append(Checkpoint(**fields))
            case Kind.CHECKPOINT_LOST:
                self._forget_checkpoint(fields["name"])
            case Kind.OPTIMIZER_PROBED:
                self.optimizer_restores = fields["passed"]
            case Kind.CLIENT_LOST:
                self.failures += 1
                self.lost_clients += 1
                self.entered = False  # what comes next is what a new process would do
            case Kind.PROCESS_STOPPED:
                self.failures += self.entered and fields["reason"] == "failed"
                self.running = self.entered = False
                self.last_stop = Stop(fields["reason"], fields["error"])
            case Kind.RUN_FINISHED:
                self.finished = True

    def _start_process(self, fields: Mapping[str, Any]) -> None:
        self.kills += self.running
        self.processes += 1
        self.running, self.entered = True, False
        self.no_progress_batches = 0
        self.config, self.num_batches = fields["config"], fields["num_batches"]
        for drift in fields["drift"]:
            if drift["field"] == "dataset":
                self.dataset = drift["new"]
        if self.state is State.FINISHED and self.batch < self.num_batches:
            # The horizon has grown: the evaluation that was the last becomes that of a batch still to be trained.
            self.state = next_state(State.MAYBE_EVALUATE, batch=self.batch, num_batches=self.num_batches)
            self.finished = False
            self.extensions += 1

    def _move(self, fields: Mapping[str, Any]) -> None:
        result = fields["result"]
        facts = self.batches.setdefault(self.batch, BatchFacts())
        facts.results[self.state] = result
        facts.seconds[self.state] = fields["seconds"]
        if self.state in {State.PUBLISH_MODEL, State.SWAP_SAMPLER}:
            self.policy_version, self.sampler_path = result["policy_version"], result["sampler_path"]
        elif self.state is State.TRAIN_STEP:
            self.no_progress_batches = self.no_progress_batches + 1 if result["skipped"] else 0
        elif self.state is State.LOG:
            self.batch += 1
        self.state = State(fields["dest"])
        self.entered = False
        self.entries = self.failures = 0

    def _forget_checkpoint(self, name: str) -> None:
        self.checkpoints = [checkpoint for checkpoint in self.checkpoints if checkpoint.name != name]

    def _problem(self, record: Record) -> str | None:
        """Why ``record`` cannot be the next one; None: it can."""
        fields, kind = record.fields, record.kind
        if record.seq != self.num_records:
            return f"seq is {record.seq}, expected {self.num_records}"
        if kind is Kind.RUN_STARTED:
            if self.run_id:
                return f"run {self.run_id} has already started"
            first = fields["forked_from"]["batch"] if "forked_from" in fields else 0
            return f"it begins at batch {first} of {fields['num_batches']}" if first > fields["num_batches"] else None
        if not self.run_id:
            return "expected run_started first"
        if kind is Kind.PROCESS_STARTED:
            if fields["num_batches"] < self.least_batches:
                return f"num_batches is {fields['num_batches']}, expected at least {self.least_batches}"
            return _mismatch(fields, attempt=self.processes)
        if not self.running:
            return "no process has started since the last one stopped"
        if kind is Kind.PROCESS_STOPPED:
            return _mismatch(fields, batch=self.batch, state=self.state)
        if self.finished:
            return "the run has finished"
        match kind:
            case Kind.STATE_ENTERED if self.entered or self.state is State.FINISHED:
                return f"{self.state} of batch {self.batch} has been entered already, or has no body"
            case Kind.STATE_ENTERED:
                return _mismatch(fields, batch=self.batch, state=self.state, attempt=self.entries)
            case Kind.TRANSITION if not self.entered:
                return f"{self.state} of batch {self.batch} has not been entered by this process"
            case Kind.TRANSITION:
                dest = next_state(self.state, batch=self.batch, num_batches=self.num_batches)
                return _mismatch(
                    fields, batch=self.batch, source=self.state, attempt=self.entries - 1, dest=dest
                ) or self._problem_with_result(fields["result"])
            case Kind.CHECKPOINT_SAVED if fields["batch"] > self.batch + 1:
                return f"batch is {fields['batch']}, expected at most {self.batch + 1}"
            case Kind.CHECKPOINT_LOST if all(live.name != fields["name"] for live in self.checkpoints):
                return f"no live checkpoint is named {fields['name']}"
            case Kind.CLIENT_LOST if not self.entered:
                return f"{self.state} of batch {self.batch} has not been entered by this process"
            case Kind.CLIENT_LOST:
                return _mismatch(fields, batch=self.batch, state=self.state)
            case Kind.RUN_FINISHED if self.state is not State.FINISHED:
                return f"the run is in {self.state} of batch {self.batch}"
            case Kind.RUN_FINISHED:
                return _mismatch(fields, batches=self.num_batches)
        return None

    def _problem_with_result(self, result: Mapping[str, Any]) -> str | None:
        for name, expected in RESULT_NEEDS.get(self.state, {}).items():
            found = result.get(name)
            if type(found) is not expected:
                return f"result.{name} of {self.state}, batch {self.batch}, is {found!r}, expected {expected.__name__}"
        return None


def _mismatch(fields: Mapping[str, Any], **expected: object) -> str | None:
    """The first field that differs from what is expected, in words."""
    for name, value in expected.items():
        if fields[name] != value:
            return f"{name} is {fields[name]}, expected {value}"
    return None


def fold(records: Iterable[Record]) -> RunState:
    """Where the run stands after ``records``.

    Raises:
        IllegalStepError: one of them is no legal step; it names its seq.
    """
    run = RunState()
    for record in records:
        run.apply(record)
    return run
