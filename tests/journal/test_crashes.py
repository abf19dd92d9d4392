"""The law of crashes: however often a journal is torn, it is the records before the tear, and goes on from there."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from journal.walk import advance, checkpoint_saved, process_stopped, take_up

from orchestrator.journal.log import JOURNAL_NAME, Journal, read_journal
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import fold


class CrashingJournal(RuleBasedStateMachine):
    """Appends, fails and loses the end of its file at random; ``acknowledged`` is what must be there."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.log_path = Path(self.folder.name)
        self.path = self.log_path / JOURNAL_NAME
        self.journal = Journal(self.log_path)
        self.acknowledged: list[Record] = []

    @rule(num_records=st.integers(1, 8))
    def append(self, num_records: int) -> None:
        self.acknowledged += advance(self.journal, num_records)

    @precondition(lambda self: self.journal.run.running)
    @rule(reason=st.sampled_from(["failed", "interrupted"]))
    def stop(self, reason: str) -> None:
        fields = process_stopped(self.journal.run, reason, "boom")
        self.acknowledged.append(self.journal.append(Kind.PROCESS_STOPPED, **fields))

    @precondition(lambda self: self.journal.run.running and not self.journal.run.finished)
    @rule()
    def save_checkpoint(self) -> None:
        name = f"{self.journal.run.batch:06d}"
        fields = checkpoint_saved(self.journal.run, name)
        self.acknowledged.append(self.journal.append(Kind.CHECKPOINT_SAVED, **fields))

    @rule()
    def kill(self) -> None:
        self.journal.close()
        self.journal = take_up(self.log_path)
        assert self.journal.torn is None
        self.acknowledged += self.journal.records[len(self.acknowledged) :]

    @rule(data=st.data())
    def crash_with_a_torn_end(self, data: st.DataObject) -> None:
        self.journal.close()
        whole = self.path.read_bytes()
        cut = data.draw(st.integers(max(0, len(whole) - 1500), len(whole)), label="cut")
        self.path.write_bytes(whole[:cut])
        self.acknowledged = self.acknowledged[: whole[:cut].count(b"\n")]
        self.journal = Journal(self.log_path)
        torn = whole[:cut].split(b"\n")[-1]
        assert (self.journal.torn.data if self.journal.torn else b"") == torn

    @rule(garbage=st.binary(min_size=1, max_size=40).filter(lambda data: b"\n" not in data))
    def crash_with_garbage_at_the_end(self, garbage: bytes) -> None:
        self.journal.close()
        with self.path.open("ab") as file:
            file.write(garbage)
        self.journal = Journal(self.log_path)
        assert self.journal.torn is not None
        assert self.journal.torn.data == garbage

    @invariant()
    def the_journal_is_what_was_acknowledged(self) -> None:
        reading = read_journal(self.log_path)
        assert self.journal.records == reading.records == self.acknowledged
        assert self.journal.run == reading.run == fold(self.acknowledged)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.journal.close()
            self.folder.cleanup()


TestCrashingJournal = CrashingJournal.TestCase
TestCrashingJournal.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)
