"""Where a run is, why, and what a resume would do and cost: read from its directory, which is left as it is."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import require_journal
from orchestrator.journal.plan import Plan, make_plan
from orchestrator.journal.recovery import ForkedFrom
from orchestrator.reporting.budget import Left
from orchestrator.reporting.progress import duration
from orchestrator.reporting.spending import Spending, read_spending
from orchestrator.reporting.work import WorkDone, read_work, work_lost


@dataclass(frozen=True, slots=True)
class Status:
    """A run as its directory tells it."""

    log_path: Path
    holder: str | None
    """The process that works on it now; None: none does."""
    killed: bool
    """Whether the last process ended without a word; the plan counts it among the kills."""
    last_record_at: str
    """When the journal last grew."""
    plan: Plan
    work: WorkDone | None
    """What was made, kept and lost; None: it was not recorded."""
    spending: Spending
    """What the run is charged for, and how long it took."""
    left: Left
    """What is left of the budgets that the newest process had."""
    forked_from: ForkedFrom | None
    """None: the run began with weights of its own."""

    def lines(self) -> list[str]:
        """The status in words."""
        if self.holder is not None:
            doing = f"running: {self.holder} is in {self.plan.state} of batch {self.plan.batch}"
        elif self.plan.finished:
            doing = "finished"
        elif self.killed:
            doing = "not running: the last process was killed"
        else:
            doing = "not running"
        fork = self.forked_from
        lineage = () if fork is None else (f"forked at batch {fork.batch} from run {fork.run_id} in {fork.log_path}",)
        head = [f"run {self.plan.run_id} in {self.log_path}", *lineage, doing, f"last record: {self.last_record_at}"]
        told = self.plan.lines()
        return [
            *head,
            f"charged: {self.spending.total.words()}, in {duration(self.spending.wall_seconds)} of work",
            *(f"  {state}: {spent.words()}" for state, spent in self.spending.states.items()),
            *self.left.lines(),
            f"work lost: {work_lost(self.work)}",
            "if it were killed now, the same command:" if self.holder else "the same command:",
            *(f"  {line}" for line in told),
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; under ``plan``, ``spending`` and ``work`` their fields."""
        return {
            "log_path": str(self.log_path),
            "holder": self.holder,
            "killed": self.killed,
            "forked_from": None if self.forked_from is None else asdict(self.forked_from),
            "last_record_at": self.last_record_at,
            "plan": self.plan.to_json(),
            "spending": self.spending.to_json(),
            "budgets": {name: getattr(self.left, name) for name in ("max_tokens_total", "max_wall_seconds")},
            "work": None if self.work is None else self.work.to_json(),
        }


def read_status(log_path: Path) -> Status:
    """The status of the run in ``log_path``; nothing is written, and a running process is not disturbed.

    Raises:
        ConfigError: there is no run there.
        JournalDamagedError, SideFileDamagedError: what is there cannot be trusted.
    """
    # Asked before and after the journal is read: a process that starts or ends meanwhile must not look killed.
    holder = RunLock.holder(log_path)
    reading = require_journal(log_path)
    holder = holder or RunLock.holder(log_path)
    killed = reading.run.running and holder is None
    plan = make_plan(reading.run, log_path)
    spending = read_spending(log_path, reading.records)
    return Status(
        log_path,
        holder,
        killed,
        last_record_at=reading.records[-1].at,
        plan=replace(plan, kills=plan.kills + 1) if killed else plan,
        work=read_work(log_path, reading.records, reading.run, live=holder is not None),
        spending=spending,
        left=Left(
            reading.run.config.get("max_tokens_total"),
            reading.run.config.get("max_wall_seconds"),
            spending.total,
            spending.wall_seconds,
        ),
        forked_from=reading.run.forked_from,
    )
