"""Judges a run directory: PASS, or the first thing in it that no kill at any moment can have left there.

Everything that a resume relies on is read and compared with the journal, which is the truth; nothing is written, and a
run at work may go on. Not looked at: ``log.jsonl``, ``lock``, reports, and files kept aside for people
(``journal.jsonl.torn-*``, ``*.before-repair-*``). What nothing else in the directory repeats (a record's clock, a
process's host, a checkpoint's creation time, the built-in model's tokenizer) cannot be judged.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import FaultFoundError, JournalDamagedError
from orchestrator.verify.checkpoints import check_checkpoints
from orchestrator.verify.datum_files import check_datums
from orchestrator.verify.evidence import Evidence, gather
from orchestrator.verify.journal_facts import check_journal
from orchestrator.verify.rollout_files import check_rollouts
from orchestrator.verify.strays import check_strays
from orchestrator.verify.turn_files import check_turns
from orchestrator.verify.views import check_views

Check = Callable[[Evidence], str]
"""Says in words what it has checked, or raises FaultFoundError."""

CHECKS: tuple[tuple[str, Check], ...] = (
    ("journal", check_journal),
    ("rollouts", check_rollouts),
    ("turns", check_turns),
    ("datums", check_datums),
    ("strays", check_strays),
    ("checkpoints", check_checkpoints),
    ("views", check_views),
)
"""In this order: each relies on those before it, and the views come last since they are made from the journal."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, where, and what to do about it."""

    path: str
    line: int | None
    """1-based; None: it is not in one line."""
    offset: int | None
    """The byte of the file; None: it is at none."""
    problem: str
    cure: str
    message: str
    """All of it, as it is printed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ``verify`` found."""

    log_path: str
    checked: dict[str, str]
    """For each check that passed, what it looked at."""
    finding: Finding | None
    """The first counter-example; None: there is none."""

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return self.finding is None

    def lines(self) -> list[str]:
        """The verdict in words, a line a check."""
        checked = [f"{name:<12}{what}" for name, what in self.checked.items()]
        return [*checked, "PASS" if self.finding is None else f"FAIL {self.finding.message}"]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"passed": self.passed, **asdict(self)}


def verify(log_path: Path) -> Verdict:
    """The verdict on the run in ``log_path``.

    Raises:
        ConfigError: no run is there.
    """
    checked: dict[str, str] = {}
    finding = None
    try:
        evidence = gather(log_path)
        for name, check in CHECKS:
            checked[name] = check(evidence)
    except (FaultFoundError, JournalDamagedError) as fault:
        cure = fault.cure if isinstance(fault, FaultFoundError) else fault.advice
        finding = Finding(str(fault.path), fault.line, fault.offset, fault.problem, cure, str(fault))
    else:
        if evidence.torn is not None:
            checked["journal"] += f", a torn last one at byte {evidence.torn.offset} that a resume cuts off"
    return Verdict(str(log_path), checked, finding)
