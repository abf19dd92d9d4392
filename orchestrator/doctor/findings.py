"""What one check of ``doctor`` found: ok, a warning or a fault, in one line with what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from orchestrator.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_USAGE

DOCTOR_HELP = """\
Each check is one line: ok, warning or fault, what was looked at, what was found and what to do. Without LOG_PATH it
looks at what `run` with the same settings would use; with LOG_PATH at that run's configuration (key=value changes a
field), at what the backend keeps of the run, and at when that expires. Nothing is written to a run. On the embedded
backend all of it happens offline; on a service the probe trains an adapter of its own and deletes what it saved.

exit codes: 0 no fault; 1 the one fault is that optimizers do not come back from checkpoints; 2 a fault, or usage"""
PROBE = "optimizer"
"""The check that asks whether an optimizer comes back with its weights."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """A run works, and something about it deserves a look."""
    FAULT = "fault"
    """A run would not start, or not resume as it should."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check; neither field ever holds a key."""

    check: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty: nothing."""

    def line(self) -> str:
        """It in words."""
        return f"{self.level:<8} {self.check:<10} {self.found}" + (f". {self.advice}" if self.advice else "")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, advice: str = "") -> Finding:
    """Something to look at."""
    return Finding(check, Level.WARNING, found, advice)


def fault(check: str, found: str, advice: str) -> Finding:
    """Something to mend."""
    return Finding(check, Level.FAULT, found, advice)


def exit_code(findings: Sequence[Finding]) -> int:
    """As ``DOCTOR_HELP`` promises."""
    faults = {finding.check for finding in findings if finding.level is Level.FAULT}
    if not faults:
        return EXIT_FINISHED
    return EXIT_FAILED if faults == {PROBE} else EXIT_USAGE
