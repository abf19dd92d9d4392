"""What a run has been so far, for who makes its weights again or starts another run from them; it is only read."""

from hashlib import sha256
from pathlib import Path
from typing import Any

from orchestrator.config import Config, Drift, field_drifts, unflatten
from orchestrator.errors import ConfigError
from orchestrator.journal.log import JOURNAL_NAME, require_journal
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import ForkedFrom
from orchestrator.names import State


class PastRun:
    """A run as its journal tells it. It may be at work: a journal only grows."""

    def __init__(self, log_path: Path) -> None:
        """Reads the journal; no lock is taken.

        Raises:
            ConfigError: no run is there.
            JournalDamagedError: its journal cannot be trusted.
        """
        reading = require_journal(log_path)
        self.log_path = log_path.absolute()
        self.records = reading.records
        self.run = reading.run
        self.config: Config = unflatten(self.run.config)
        """Of its newest process."""

    def require_batch(self, batch: int) -> None:
        """Does nothing where the weights after ``batch`` batches are among this run's.

        Raises:
            ConfigError: they are not, or not yet.
        """
        fork = self.run.forked_from
        if fork is not None and batch < fork.batch:
            raise ConfigError(
                f"--batch {batch}: {self.log_path} was forked at batch {fork.batch} from the run in {fork.log_path}, "
                "which has the batches before; give that log_path"
            )
        first, trained = self.run.first_batch, self.run.trained_batches
        if not first <= batch <= trained:
            raise ConfigError(
                f"--batch {batch}: the run in {self.log_path} has weights after {first} to {trained} batches; give one "
                "of these numbers"
            )

    def config_of(self, batch: int) -> dict[str, Any]:
        """The flat configuration that the train step of ``batch`` was taken with; how the run is reached is as now."""
        taken = self._deciding_record(batch + 1).seq
        before = [record for record in self.records[:taken] if record.kind is Kind.PROCESS_STARTED]
        config: dict[str, Any] = before[-1].fields["config"]
        now = {name: value for name, value in self.run.config.items() if field_drifts().get(name) is Drift.OPERATIONAL}
        return config | now

    def fork_at(self, batch: int, changed: list[dict[str, Any]]) -> ForkedFrom:
        """How the journal of a fork that begins with the weights after ``batch`` batches names this run.

        Raises:
            ConfigError: see ``require_batch``.
        """
        self.require_batch(batch)
        seq = self._deciding_record(batch).seq
        return ForkedFrom(str(self.log_path), self.run.run_id, batch, seq, self.digest(seq), changed)

    def digest(self, seq: int) -> str:
        """Hexadecimal SHA-256 of the journal up to and with the record ``seq``."""
        lines = (self.log_path / JOURNAL_NAME).read_bytes().split(b"\n", seq + 1)
        return sha256(b"".join(line + b"\n" for line in lines[: seq + 1])).hexdigest()

    def _deciding_record(self, batch: int) -> Record:
        """The last record that decides the weights after ``batch`` batches; all later ones build on it."""
        if batch == self.run.first_batch:
            return self.records[0]
        return next(
            record
            for record in self.records
            if record.kind is Kind.TRANSITION
            and (record.fields["source"], record.fields["batch"]) == (State.TRAIN_STEP, batch - 1)
        )
