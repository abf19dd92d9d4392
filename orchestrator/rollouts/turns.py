"""The turns of unfinished rollouts: each model call is on the disk before its reply leaves, and is read again here.

A line of ``turns/<batch>.<mode>.jsonl`` is one answered call. The file only saves money: a rollout's own stored line
wins over it, and it is removed once the state that played is journaled. So a damaged one is set aside with a warning,
never trusted and never a reason to refuse the run.
"""

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import structlog

from orchestrator.disk import DISK, Disk, write_error
from orchestrator.errors import JournalWriteError, SideFileDamagedError
from orchestrator.journal.checked import check_crc, with_crc
from orchestrator.journal.durable import LineFile
from orchestrator.names import batch_name
from orchestrator.rollouts.outcomes import Mode, RolloutKey, Turn, read_logprobs

TURNS = "turns"
"""Their folder in the run directory."""
_NAME = re.compile(r"\d{6}\.(train|eval)\.jsonl")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """One model call of an attempt, with what was sampled for it."""

    key: RolloutKey
    attempt: int
    prompt_tokens: tuple[int, ...]
    repeat: int
    """How many of the attempt's other calls with this prompt come before it."""
    asked: str
    """Its sampling parameters, as ``asked_text`` gives them."""
    overlapped: bool
    """Whether two calls of the attempt had been in flight at once when this one was answered."""
    turns: tuple[Turn, ...]
    """One a sample."""

    @property
    def policy_version(self) -> int:
        """Of the policy that was sampled."""
        return self.turns[0].policy_version

    def to_json(self) -> str:
        """The stored line, without its newline: strict JSON, with its checksum as of ``with_crc``."""
        fields = {
            "batch": self.key.batch,
            "mode": self.key.mode,
            "group": self.key.group,
            "member": self.key.member,
            "attempt": self.attempt,
            "repeat": self.repeat,
            "overlapped": self.overlapped,
            "policy_version": self.policy_version,
            "asked": orjson.Fragment(self.asked),
            "prompt_tokens": self.prompt_tokens,
            "samples": [
                {"sampled_tokens": turn.sampled_tokens, "logprobs": turn.logprobs, "stop_reason": turn.stop_reason}
                for turn in self.turns
            ],
        }
        return with_crc(orjson.dumps(fields).decode())

    @classmethod
    def from_json(cls, line: str) -> "AnsweredCall":
        """The call that ``to_json`` wrote.

        Raises:
            ValueError, KeyError, TypeError: the line is not such a call, or was changed since it was written.
        """
        check_crc(line)
        fields: dict[str, Any] = orjson.loads(line)
        prompt = tuple(fields["prompt_tokens"])
        turns = tuple(
            Turn(
                prompt,
                tuple(sample["sampled_tokens"]),
                read_logprobs(sample["logprobs"]),
                fields["policy_version"],
                sample["stop_reason"],
            )
            for sample in fields["samples"]
        )
        if not turns:
            raise ValueError("it holds no sample")
        key = RolloutKey(fields["batch"], fields["mode"], fields["group"], fields["member"])
        asked = asked_text(fields["asked"])
        return cls(key, fields["attempt"], prompt, fields["repeat"], asked, fields["overlapped"], turns)


def asked_text(sampling: Any) -> str:
    """Sampling parameters, a dataclass or a mapping, as JSON that is equal for equal ones."""
    # Twice, for the fields of a dataclass keep their order even when keys are sorted.
    return orjson.dumps(orjson.loads(orjson.dumps(sampling)), option=orjson.OPT_SORT_KEYS).decode()


def turn_path(log_path: Path, batch: int, mode: Mode) -> Path:
    """Where the turns of the unfinished rollouts of ``batch`` are stored."""
    return log_path / TURNS / f"{batch_name(batch)}.{mode}.jsonl"


def read_calls(path: Path, lines: Sequence[str]) -> list[AnsweredCall]:
    """The calls that ``lines`` of ``path`` hold.

    Raises:
        SideFileDamagedError: a line is no call of the batch and mode that the file is named after.
    """
    calls = []
    for number, line in enumerate(lines, start=1):
        try:
            call = AnsweredCall.from_json(line)
        except (ValueError, KeyError, TypeError) as error:
            raise SideFileDamagedError(f"{path}, line {number}: not a stored turn ({error!r})") from error
        if f"{batch_name(call.key.batch)}.{call.key.mode}.jsonl" != path.name:
            raise SideFileDamagedError(
                f"{path}, line {number}: a turn of rollout {call.key}, which is of another state"
            )
        calls.append(call)
    return calls


def forget_turns(log_path: Path, *, under_way: Path | None) -> None:
    """Removes the turns of every state but the one that is ``under_way``: they are journaled, as rollouts.

    Not synced: what a power cut brings back is removed by the next start.

    Raises:
        JournalWriteError: a file could not be removed.
    """
    folder = log_path / TURNS
    for path in folder.iterdir() if folder.is_dir() else ():
        if path != under_way and _NAME.fullmatch(path.name):
            try:
                path.unlink()
            except OSError as error:
                raise write_error(path, error) from error


class TurnLog:
    """The file of one state's turns, open: calls that wait at the same time share one write and one sync.

    A thread of its own does both, so whoever appends is never held up by the disk. Threads may share the object. After
    a failed write it takes no more calls.
    """

    def __init__(self, path: Path, *, disk: Disk = DISK, on_failure: Callable[[], object] = lambda: None) -> None:
        """Opens ``path``, made where missing; a damaged file is set aside under another name first.

        ``on_failure`` is called on the writing thread, before any call that could not be stored hears of it.

        Raises:
            JournalWriteError: the file cannot be made, opened or set aside.
        """
        self._lines, self.found = _open_or_set_aside(path, disk)
        self.failure: Exception | None = None
        """Why calls could not be stored; None while all could."""
        self._on_failure = on_failure
        self._waiting: list[tuple[AnsweredCall, Future[None]]] = []
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="turns", daemon=True)
        self._thread.start()

    def append(self, call: AnsweredCall) -> "Future[None]":
        """Returns at once; the future is done when the call outlives the process, or holds a JournalWriteError."""
        stored: Future[None] = Future()
        stored.set_running_or_notify_cancel()  # who no longer waits for it must not take it from the writing thread
        with self._changed:
            if not self._ended:
                self._waiting.append((call, stored))
                self._changed.notify()
                return stored
        stored.set_exception(JournalWriteError(f"{self._lines.path}: takes no more turns"))
        return stored

    def close(self) -> None:
        """Takes no more calls, and returns once those that wait are stored."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()
        self._lines.close()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            try:
                self._lines.append(*(call.to_json() for call, _ in waiting))
            except Exception as error:  # it belongs to the calls, and to whoever plays the rollouts
                self._fail(error, waiting)
                return
            for _, stored in waiting:
                stored.set_result(None)

    def _fail(self, error: Exception, waiting: list[tuple[AnsweredCall, "Future[None]"]]) -> None:
        with self._changed:
            self.failure, self._ended = error, True
            waiting = waiting + self._waiting
        # First: an agent that hears of it may fail its rollout, and nobody may store that as what the agent did.
        self._on_failure()
        for _, stored in waiting:
            stored.set_exception(error)


def _open_or_set_aside(path: Path, disk: Disk) -> tuple[LineFile, list[AnsweredCall]]:
    """The file, and the calls found in it."""
    try:
        lines = LineFile(path, disk=disk)
        try:
            return lines, read_calls(path, lines.lines)
        except SideFileDamagedError:
            lines.close()
            raise
    except SideFileDamagedError as error:
        number = 0
        while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        try:
            disk.rename(path, aside)
        except OSError as failed:
            raise write_error(path, failed) from failed
        log.warning("the kept turns are damaged: set aside, and sampled again", file=str(aside), error=str(error))
    return LineFile(path, disk=disk), []
