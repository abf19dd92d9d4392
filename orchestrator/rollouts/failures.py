"""How the exception that an agent raised is kept with its rollout: a line, and a traceback of the agent's own frames.

Both may quote a prompt, so they stay in ``rollouts/``; neither holds a secret, a local variable, or an id or address
that differs between two runs of the same rollout. Frames inside installed packages are left out, but for the one that
raised: which of them are passed may depend on timing, e.g. on whether a connection could be used again.
"""

import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.redaction import REPLACEMENT, Redactor

MAX_MESSAGE_CHARACTERS = 500
"""Of the message in the line; in the traceback each may have four times as many."""
MAX_FRAMES = 40
"""Of each exception, the outermost and the innermost half."""
MAX_LINKS = 8
"""Exceptions told in all: causes, contexts, and the members of groups."""
MAX_SOURCE_CHARACTERS = 200
INSTALLED = {"site-packages", "dist-packages"}
NOT_THE_AGENTS = (sysconfig.get_path("stdlib"), str(Path(__file__).parent), "<")
"""How the file names of frames begin that are the standard library's, the runners' or no file's."""
_VARYING = (
    (re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"), REPLACEMENT),
    (re.compile(r"https?://[^\s'\"]*/rollout/[^/\s]+/attempt/[^/\s'\"]+"), "<llm.endpoint>"),
    (re.compile(r"\b(ro|at|chatcmpl)-[0-9a-f]{8,}\b"), r"\1-..."),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x..."),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """An agent's exception in words, which unlike the exception itself can travel and holds nothing alive."""

    error: str
    """``<type> at <file>:<line>: <message>``, shortened; the place is the innermost line of the agent's own."""
    traceback: str
    """As Python prints it, causes first; see above for what is left out."""


def describe(error: BaseException) -> Failure:
    """``error`` in words. Its ``__str__`` is the agent's code and may hang: call this where the agent runs."""
    redact = Redactor()
    line = f"{type(error).__name__}{_place(error)}: {_message(error, redact, MAX_MESSAGE_CHARACTERS)}"
    return Failure(line, _plain("\n".join(_blocks(error, redact, [])), redact))


def _place(error: BaseException) -> str:
    """`` at <file>:<line>``, the innermost line of the agent's own; where it has none, that of what led to it."""
    link: BaseException | None = error
    for _ in range(MAX_LINKS):
        if link is None:
            break
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            if _is_the_agents(frame):
                return f" at {Path(frame.filename).name}:{frame.lineno}"
        link = link.__cause__ or link.__context__
    return ""


def _blocks(error: BaseException, redact: Redactor, told: list[BaseException]) -> Iterator[str]:
    """The lines of what led to ``error``, of itself, and of its members; ``told`` holds those that are told already."""
    told.append(error)
    cause, context = error.__cause__, None if error.__suppress_context__ else error.__context__
    for link, words in ((cause, "direct cause of"), (context, "error in handling which came")):
        if link is not None and len(told) < MAX_LINKS and not any(link is other for other in told):
            yield from _blocks(link, redact, told)
            yield f"\nThe above exception was the {words} this one:\n"
    yield "Traceback (most recent call last, the agent's own lines):"
    yield from _frames(traceback.extract_tb(error.__traceback__))
    yield f"{type(error).__qualname__}: {_message(error, redact, 4 * MAX_MESSAGE_CHARACTERS)}"
    if isinstance(error, BaseExceptionGroup):
        for number, member in enumerate(error.exceptions, start=1):
            if len(told) >= MAX_LINKS:
                yield f"  | and {len(error.exceptions) - number + 1} more"
                return
            yield f"  | {number} of {len(error.exceptions)}"
            yield from (f"  | {line}" for block in _blocks(member, redact, told) for line in block.splitlines())


def _frames(frames: traceback.StackSummary) -> Iterator[str]:
    kept = [frame for number, frame in enumerate(frames, 1) if _is_the_agents(frame) or number == len(frames)]
    half = MAX_FRAMES // 2
    for number, frame in enumerate(kept):
        if half <= number < len(kept) - half:
            if number == half:
                yield f"  ... {len(kept) - 2 * half} frames ..."
            continue
        yield f'  File "{_short(frame.filename)}", line {frame.lineno}, in {frame.name}'
        if frame.line:
            yield f"    {frame.line[:MAX_SOURCE_CHARACTERS]}"


def _message(error: BaseException, redact: Redactor, most: int) -> str:
    try:
        message = str(error)
        notes = getattr(error, "__notes__", ())
        message = "\n".join([message, *notes] if all(isinstance(note, str) for note in notes) else [message])
    except BaseException as failure:  # it is the agent's code
        message = f"<its message cannot be told: {type(failure).__name__}>"
    message = _plain(message, redact)  # before it is cut: half a secret is one that nobody finds
    return message if len(message) <= most else f"{message[:most]}..."


def _plain(text: str, redact: Redactor) -> str:
    text = redact(text)
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    return text.encode(errors="replace").decode()  # lone surrogates are no text that can be stored


def _is_the_agents(frame: traceback.FrameSummary) -> bool:
    return not INSTALLED & set(Path(frame.filename).parts) and not frame.filename.startswith(NOT_THE_AGENTS)


def _short(filename: str) -> str:
    """The path from where Python found the module on: the same on every machine that runs the agent."""
    parents = [entry for entry in sys.path if entry and filename.startswith(f"{entry.rstrip('/')}/")]
    return filename[len(max(parents, key=len).rstrip("/")) + 1 :] if parents else Path(filename).name
