"""Logging: every line, third-party ones included, as JSON in ``log.jsonl``; our own, readable, on the console.

structlog events and standard library records meet in the root logger and leave through two handlers, which give each
line the run's context and take the secrets out; what a line may hold at all is said in ``lines``.
"""

import json
import logging
import os
import sys
import threading
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import structlog
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text
from structlog.typing import EventDict, WrappedLogger

from orchestrator.errors import ConfigError
from orchestrator.redaction import Redactor
from orchestrator.reporting.lines import CONTEXT_FIELDS, OWN_LOGGERS, line_fields

log = structlog.get_logger(__name__)

LOG_FILE = "log.jsonl"
# These write a line a model call at INFO: the log would grow with the tokens.
TALKATIVE_LOGGERS = (
    "httpx",
    "httpx2",
    "httpcore",
    "openai",
    "LiteLLM",
    "LiteLLM Proxy",
    "LiteLLM Router",
    "uvicorn.access",
)
LEVEL_STYLES = {"debug": "dim", "info": "green", "warning": "yellow", "error": "bold red", "critical": "bold red"}


class PatientConsole(Console):
    """A console whose reader may go away: the run goes on, without being shown."""

    def on_broken_pipe(self) -> None:
        """Shows nothing more; rich's own would end the process."""
        self.quiet = True


class RunLogging:
    """Logging as ``configure_logging`` set it up, until ``close``."""

    def __init__(self, log_path: Path | None, *, level: str, console: Console, redact: Redactor) -> None:
        """See ``configure_logging``."""
        self.console = console
        """Where lines, and the progress display, go."""
        self.redact = redact
        """Takes the secrets out of a text; ``add`` teaches it more of them."""
        self._quotes = level == "debug"
        self._context: dict[str, Any] = dict.fromkeys(CONTEXT_FIELDS)
        self._levels: dict[logging.Logger, int] = {}
        self._captured: list[tuple[logging.Logger, logging.Handler, bool]] = []
        self._handlers: list[logging.Handler] = [_ConsoleHandler(level, console)]
        if log_path is not None:
            self._handlers.append(_FileHandler(log_path / LOG_FILE, console))
        for handler in self._handlers:
            handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=[self._line, _render]))
            logging.root.addHandler(handler)
        self._set_levels()
        logging.captureWarnings(True)
        # Python's own print the exceptions of threads and finalizers, messages and all, on standard error.
        self._hooks = (threading.excepthook, sys.unraisablehook)
        threading.excepthook, sys.unraisablehook = _thread_died, _error_ignored
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
            cache_logger_on_first_use=False,
        )
        self.capture_loggers()

    def bind(self, **context: Any) -> None:
        """Sets fields of the process-wide context that every line carries from now on.

        Use this, not context variables, for ``CONTEXT_FIELDS``: threads have none, and tasks that outlive a batch, like
        the gateway's, would keep those of the batch they were started in. Context variables suit what is narrower.
        """
        self._context = {**self._context, **context}  # replaced, never changed: other threads read it

    def capture_loggers(self) -> None:
        """Takes console handlers off third-party loggers, whose lines then only go to ``log.jsonl``.

        Libraries attach such handlers while they are imported: call it again after the heavy imports.
        """
        loggers = [item for item in logging.root.manager.loggerDict.values() if isinstance(item, logging.Logger)]
        for logger in (logging.root, *loggers):
            for handler in [handler for handler in logger.handlers if _writes_to_console(handler)]:
                self._captured.append((logger, handler, logger.propagate))
                logger.removeHandler(handler)
                logger.propagate = True

    def __enter__(self) -> Self:
        """The logging itself, closed on exit."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes."""
        self.close()

    def close(self) -> None:
        """Puts the logging of the process back as it was and closes the file. Closing twice is harmless."""
        for handler in self._handlers:
            logging.root.removeHandler(handler)
            if isinstance(handler, _FileHandler):
                handler.close_file()
        for logger, handler, propagate in reversed(self._captured):
            logger.addHandler(handler)
            logger.propagate = propagate
        for logger, level in self._levels.items():
            logger.setLevel(level)
        if self._handlers:
            logging.captureWarnings(False)
            threading.excepthook, sys.unraisablehook = self._hooks
            structlog.reset_defaults()
        self._handlers, self._captured, self._levels = [], [], {}

    def _line(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Runs in the thread that logs."""
        return line_fields(event, context=self._context, redact=self.redact, quotes=self._quotes)

    def _set_levels(self) -> None:
        levels = {"": logging.INFO, **dict.fromkeys(OWN_LOGGERS, logging.DEBUG)}
        levels |= dict.fromkeys(TALKATIVE_LOGGERS, logging.WARNING)
        for name, level in levels.items():
            logger = logging.getLogger(name)
            self._levels[logger] = logger.level
            logger.setLevel(level)


def configure_logging(
    log_path: Path | None, *, level: str = "info", console: Console | None = None, redact: Redactor | None = None
) -> RunLogging:
    """Sends all logging of the process to ``log_path``/log.jsonl (None: no file) and our own lines to ``console``.

    ``level`` is the least level that the console shows (``debug``, ``info``, ``warning`` or ``error``); the file has
    all of ours and third-party lines from INFO on, ``warnings`` among them. What others say in their lines and in the
    messages of their exceptions is told under ``debug`` only. ``console`` is standard error unless given;
    give the progress display the same one, so that lines appear above it. Close one configuration before the next.

    Raises:
        ConfigError: the file cannot be opened.
    """
    try:
        return RunLogging(log_path, level=level, console=console or Console(stderr=True), redact=redact or Redactor())
    except OSError as error:
        raise ConfigError(
            f"log_path={log_path}: {LOG_FILE} cannot be opened for writing ({error.strerror}); remove what is there, "
            "or give another log_path"
        ) from error


class _FileHandler(logging.Handler):
    """Appends lines to a file that only its owner can read, each in one unbuffered write."""

    def __init__(self, path: Path, console: Console) -> None:
        super().__init__()
        self._path, self._console, self._failed = path, console, False
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            os.write(file, b"\n")  # a power loss tore the last line: the next one must not be glued to it
        self._file = os.fdopen(file, "ab", buffering=0)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the line."""
        try:
            line = f"{self.format(record)}\n".encode()
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")  # noqa: TRY301
        except Exception:  # a log line must not end the run
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """Says once that lines are being lost; the record itself is not shown, as nothing has redacted it."""
        if not self._failed:
            self._failed = True
            error = sys.exc_info()[1]
            lost = f"{self._path}: a line of {record.name} is lost, more may be ({type(error).__name__}: {error})"
            self._console.print(Text(f"{lost}; the run goes on without them"), soft_wrap=True)

    def close_file(self) -> None:
        """Closes the file. Not ``close``: every ``dictConfig``, of uvicorn for one, closes all handlers there are."""
        self._file.close()


class _ConsoleHandler(logging.Handler):
    """Prints our own lines through rich, above a live display where there is one."""

    def __init__(self, level: str, console: Console) -> None:
        super().__init__(level.upper())
        self._console = console
        self.addFilter(lambda record: record.name.partition(".")[0] in OWN_LOGGERS)

    def emit(self, record: logging.LogRecord) -> None:
        """Prints the line; colours are the console's business."""
        try:
            self._console.print(_readable(json.loads(self.format(record))), soft_wrap=True, highlight=False)
        except OSError:  # the console is gone: nothing more can be shown, and the file has the lines
            self.setLevel(logging.CRITICAL + 1)
        except Exception as error:  # a log line must not end the run
            self._console.print(
                Text(f"a line of {record.name} cannot be shown ({type(error).__name__})"), soft_wrap=True
            )


def _thread_died(died: threading.ExceptHookArgs) -> None:
    if died.exc_type is not SystemExit:
        log.warning("a thread died of an error", exc_info=died.exc_value)


def _error_ignored(ignored: "sys.UnraisableHookArgs") -> None:
    log.debug("an error where nothing can raise one", exc_info=ignored.exc_value)


def _render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return json.dumps(event, allow_nan=False)


def _readable(fields: dict[str, Any]) -> Text:
    """``11:02:03 info     rollouts finished  batch=3 state=Rollout done=64`` in local time."""
    text = Text(datetime.fromisoformat(fields.pop("at")).astimezone().strftime("%H:%M:%S "), style="dim")
    level = fields.pop("level")
    text = Text.assemble(text, (f"{level:8} ", LEVEL_STYLES.get(level, "")), str(fields.pop("event")))
    exception = fields.pop("exception", None)
    hidden = ("logger", "run_id", "journal_seq")
    pairs = [f"{key}={value}" for key, value in fields.items() if value is not None and key not in hidden]
    if pairs:
        text.append("  " + " ".join(pairs), style="dim")
    if exception:
        text.append(f"\n{exception}")
    return text


def _writes_to_console(handler: logging.Handler) -> bool:
    if isinstance(handler, RichHandler):
        return True
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return isinstance(handler, logging.StreamHandler) and handler.stream in streams
