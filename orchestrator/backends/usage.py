"""The usage file of a run: a line for every request to the backend and one for its reply, written and read here.

It is kept for the user, who pays for requests: nothing in a run is decided by it, so it may not fail a run, and it is
not synced. A kill loses nothing of it; a power cut may lose the counts of the last seconds.
"""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

import orjson

USAGE_NAME = "usage.jsonl"
FILE_MODE = 0o600


class Event(StrEnum):
    """What a line says of its request."""

    ASKED = "asked"
    """It is about to be made: whatever becomes of the process, it may be charged."""
    ANSWERED = "answered"
    """The reply has arrived."""
    REFUSED = "refused"
    """The backend said that it did not carry it out."""
    FOUND = "found"
    """The name of a save is taken: an earlier save of that name was carried out."""


class UsageLine(NamedTuple):
    """One line of the file. It says all that is known of its request, so that lines can simply be added up."""

    process: int
    """How many processes of the run came before the one that asked."""
    batch: int
    """Where the run was when it asked: redoing an earlier batch's train step is done in a later batch."""
    state: str
    event: Event
    request: str
    """The client's method, without ``_async``."""
    prompt_tokens: int = 0
    """Sent to be continued or scored."""
    sampled_tokens: int = 0
    """Received: only an answered ``sample`` has some."""
    trained_tokens: int = 0
    """Input tokens of the datums sent."""
    name: str = ""
    """Of what is saved."""

    def to_json(self, at: str) -> bytes:
        """The stored line with its newline; ``at`` is when, as in the journal. What is nothing is left out."""
        paid = {"prompt_tokens": self.prompt_tokens, "sampled_tokens": self.sampled_tokens}
        paid |= {"trained_tokens": self.trained_tokens}
        named = {"name": self.name} if self.name else {}
        fields = {
            "at": at,
            "process": self.process,
            "batch": self.batch,
            "state": self.state,
            "event": self.event,
            "request": self.request,
            **{name: tokens for name, tokens in paid.items() if tokens},
            **named,
        }
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, line: bytes) -> "UsageLine":
        """The line that ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        fields: dict[str, Any] = orjson.loads(line)
        del fields["at"]
        fields["event"] = Event(fields["event"])
        read = cls(**fields)
        if tuple(map(type, read)) != _TYPES or min(field for field in read if isinstance(field, int)) < 0:
            raise ValueError(f"not a line of usage: {read}")
        return read


_AT = slice(len('{"at":"'), len('{"at":"2026-11-30T11:02:03.123456Z'))
"""Where a line says when: its first field is always as long."""
_TYPES = (int, int, str, Event, str, int, int, int, str)
"""Of a line's fields."""


class UsageLog:
    """The file while one process works on the run; its methods may be called on any thread.

    A file that cannot be made or written is one warning, and what happens from then on is not counted.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        process: int,
        batch: int,
        state: str,
        heard: Callable[[UsageLine], None] = lambda _line: None,
    ) -> None:
        """Appends to the file of ``log_path``, made (mode 0600) where missing; the run is in ``state`` of ``batch``.

        ``heard`` is given every line, written or not, on the thread that counts it.
        """
        self._path = log_path / USAGE_NAME
        self._heard = heard
        self._process = process
        self._place = (batch, state)
        self._descriptor: int | None = None
        self._guard = threading.Lock()  # a descriptor that was closed meanwhile may by now be another file's
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, FILE_MODE)
            size_bytes = os.fstat(self._descriptor).st_size
            if size_bytes and os.pread(self._descriptor, 1, size_bytes - 1) != b"\n":
                self._write(b"\n")  # ends what a power cut or a full disk tore, so that the next line is whole
        except OSError as error:
            self._give_up(error)

    def enter(self, batch: int, state: str) -> None:
        """Requests made from now on belong to ``state`` of ``batch``."""
        self._place = (batch, state)

    def asked(self, request: str, *, prompt_tokens: int = 0, trained_tokens: int = 0, name: str = "") -> "Request":
        """Counts a request that is about to be made; what becomes of it is told to the value returned."""
        batch, state = self._place
        line = UsageLine(
            self._process,
            batch,
            state,
            Event.ASKED,
            request,
            prompt_tokens=prompt_tokens,
            trained_tokens=trained_tokens,
            name=name,
        )
        self.append(line)
        return Request(self, line)

    def append(self, line: UsageLine) -> None:
        """Adds one line with one write."""
        self._heard(line)
        self._write(line.to_json(datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")))

    def close(self) -> None:
        """Counts nothing more; replies may still arrive on other threads."""
        with self._guard:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        try:
            with self._guard:
                if self._descriptor is None:
                    return
                written = os.write(self._descriptor, data)
            if written != len(data):
                self._give_up(OSError(f"only {written} of {len(data)} bytes were taken"))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        # Start-up time: who only reads the file, as `status` does, needs none of it.
        import structlog

        log = structlog.get_logger(__name__)
        log.warning("usage is not counted from here on; the run goes on", file=str(self._path), error=str(error))


@dataclass(frozen=True, slots=True)
class Request:
    """A request that was counted. Where nothing is told of it nobody got its reply, and it may be charged."""

    log: UsageLog
    line: UsageLine

    def answered(self, *, sampled_tokens: int = 0) -> None:
        """Its reply has arrived."""
        line = self.line
        self.log.append(
            UsageLine(line.process, line.batch, line.state, Event.ANSWERED, line.request, sampled_tokens=sampled_tokens)
        )

    def ended(self, event: Event) -> None:
        """It was not carried out, for the reason that ``event`` gives."""
        self.log.append(self.line._replace(event=event))


def read_usage(log_path: Path) -> Iterator[UsageLine | None]:
    """The lines of a run's usage file, one at a time; None for one that is torn or not of this format.

    Raises:
        FileNotFoundError: nothing was ever counted there.
    """
    return (line for _, line in read_timed_usage(log_path))


def read_timed_usage(log_path: Path) -> Iterator[tuple[str, UsageLine | None]]:
    """As ``read_usage``, each line with when it was written, as in the journal; without meaning where it is None.

    Raises:
        FileNotFoundError: nothing was ever counted there.
    """
    with (log_path / USAGE_NAME).open("rb") as file:
        for line in file:
            at = line[_AT].decode("ascii", "replace")
            try:
                yield at, UsageLine.from_json(line)
            except (ValueError, KeyError, TypeError):
                yield at, None
