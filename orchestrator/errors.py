"""The exceptions users meet, and the exit code that each one means.

OrchestratorError                    exit 1: failed, the same command resumes
├── StateFailedError                 a state's body failed or ran out of time
├── NoProgressError                  too many batches in a row gave nothing to train on
├── BudgetReachedError               max_tokens_total or max_wall_seconds is spent; more of it resumes the run
├── JournalWriteError                journal or side file could not be written; the machine has not moved
├── GatewayError                     the gateway could not be started
├── BackendError                     the backend refused or lost a request
│   └── ClientLostError              the training client is lost; the state is entered again, up to max_attempts
├── ConfigError (ValueError)         exit 2: nothing was started
│   └── DatasetError                 the tasks cannot be read or do not fill a batch
├── RefusedError                     exit 3: nothing was spent, files are as they were
│   ├── JournalDamagedError          a record of the journal cannot be trusted
│   ├── SideFileDamagedError         a stored rollout or datum file cannot be trusted
│   ├── FaultFoundError              `verify` found something in a run directory that no kill can leave there
│   ├── DriftError                   configuration or dataset differ from what the run began with
│   ├── LockedError                  another process holds the run directory
│   ├── TooManyAttemptsError         the same batch and state failed max_attempts times
│   └── UnrecoverableError           no live checkpoint and nothing to redo from
└── InterruptedRunError              exit 130 or 143: stopped by a signal, the same command resumes

Every message says what, where, found against expected, and what to do next. None quotes a task, a prompt, a completion
or the message of an agent's, a library's or a service's exception: those are put in words by ``telling``.
"""

from pathlib import Path

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


class StopRequested(Exception):  # noqa: N818 - the caller asked for it
    """Work was left off because the run is asked to stop; everything stored and journaled so far stands."""


class OwnWordsError(Exception):
    """An exception whose message is this program's own and is told whole; see ``telling`` for everybody else's."""


class OrchestratorError(OwnWordsError):
    """Root of the tree: the run failed and the same command resumes it."""

    exit_code = EXIT_FAILED


class StateFailedError(OrchestratorError):
    """A state's body raised or ran past its deadline."""


class NoProgressError(OrchestratorError):
    """``max_no_progress_batches`` batches in a row gave no optimizer step."""


class BudgetReachedError(OrchestratorError):
    """The run has spent its ``max_tokens_total`` or its ``max_wall_seconds``."""


class JournalWriteError(OrchestratorError):
    """A file of the run could not be written; what it would have recorded has not happened."""


class GatewayError(OrchestratorError):
    """The gateway did not come up, or something else answers on its port."""


class BackendError(OrchestratorError):
    """The training or sampling backend refused, lost or never answered a request."""


class ClientLostError(BackendError):
    """What the training client holds is in doubt or gone, and the service lives: a new client can take its place."""


class ConfigError(OrchestratorError, ValueError):
    """The command line or a configuration file asks for something that cannot be."""

    exit_code = EXIT_USAGE


class DatasetError(ConfigError):
    """The tasks cannot be read, or there are too few of them."""


class RefusedError(OrchestratorError):
    """What is on disk or on the service cannot be trusted; nothing was changed or spent."""

    exit_code = EXIT_REFUSED


class JournalDamagedError(RefusedError):
    """A newline-terminated journal line does not hold the record that must stand there."""

    def __init__(self, path: Path, *, line: int, offset: int, problem: str, advice: str) -> None:
        """``line`` is 1-based, ``offset`` the byte at which that line begins."""
        super().__init__(f"{path}, line {line} (byte {offset}): {problem}. {advice}")
        self.path, self.line, self.offset, self.problem, self.advice = path, line, offset, problem, advice


class SideFileDamagedError(RefusedError):
    """A file that the journal relies on is missing, changed or unreadable."""


class FaultFoundError(RefusedError):
    """A run directory holds something that no kill can leave there."""

    def __init__(self, path: Path, *, problem: str, cure: str, line: int | None = None, offset: int | None = None):
        """``line`` is 1-based, ``offset`` a byte of the file; None: the fault has no such place."""
        place = ("" if line is None else f", line {line}") + ("" if offset is None else f" (byte {offset})")
        super().__init__(f"{path}{place}: {problem}. {cure}")
        self.path, self.line, self.offset, self.problem, self.cure = path, line, offset, problem, cure


class DriftError(RefusedError):
    """A field or the dataset differs from what the run was started with."""


class LockedError(RefusedError):
    """Another process works on the same run directory."""


class TooManyAttemptsError(RefusedError):
    """The same batch and state failed ``max_attempts`` times."""


class UnrecoverableError(RefusedError):
    """Weights cannot be restored: no checkpoint lives and the batches cannot be redone."""


class InterruptedRunError(OrchestratorError):
    """A signal asked the run, or its workers, to stop."""

    def __init__(
        self, signal_name: str, exit_code: int, *, then: str = "the same command resumes where it stopped"
    ) -> None:
        """``exit_code`` is 128 plus the signal's number; ``then`` is what can be done next."""
        super().__init__(f"stopped by {signal_name}; {then}")
        self.signal_name = signal_name
        self.exit_code = exit_code
