"""Public parts for tests of agents and of runs: kill points, faults by plan, a request ledger, and what a run comes to.

All are real classes that count, wait or die; nothing is patched.
"""

from orchestrator.testing.fakes import Answer, FakeSamplingClient
from orchestrator.testing.faults import AtStep, Fault, FaultyDisk
from orchestrator.testing.ledger import LedgerService, read_ledger, read_replies
from orchestrator.testing.outcome import first_difference, outcome_of_run
from orchestrator.testing.points import KillAt, KillAtNumber, NotePoints, ObservedDisk, Observer, watch_nothing

__all__ = [
    "Answer",
    "AtStep",
    "FakeSamplingClient",
    "Fault",
    "FaultyDisk",
    "KillAt",
    "KillAtNumber",
    "LedgerService",
    "NotePoints",
    "ObservedDisk",
    "Observer",
    "first_difference",
    "outcome_of_run",
    "read_ledger",
    "read_replies",
    "watch_nothing",
]
