"""How an exception is told: our own in their words, everybody else's by type and place, without its message.

An exception quotes what its raiser choked on: those of agents, renderers and services quote prompts, tasks, keys and
whole requests. So no message of a foreign exception, nor of its causes, reaches the journal, a log, the console or
another error. ``log_level=debug`` asks for it: then log and console have the traceback whole, but for secrets. Our own
errors are told whole, because their words are ours: they never quote a task, a prompt or a completion.
"""

import errno
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import OwnWordsError

MAX_FRAMES = 8
"""Of each exception in a trace, the innermost ones."""
MAX_CAUSES = 8
INSTALLED = {"site-packages", "dist-packages"}
NOT_OURS = (sysconfig.get_path("stdlib"), "<")
"""How the file names of frames begin that are the standard library's or no file's."""


def told(error: BaseException) -> str:
    """``error`` as journal, logs and console may have it.

    One of ours is its message. A foreign one is its type, the name of its errno or its HTTP status where it has one,
    and the innermost line that belongs to no installed library, e.g. ``KeyError at my_agent.py:8`` or
    ``OSError ENOSPC at durable.py:33``.
    """
    if isinstance(error, OwnWordsError):
        return str(error)
    code = _code(error)
    return f"{type(error).__name__}{f' {code}' if code else ''}{_place(error)}"


def trace(error: BaseException) -> str:
    """``told`` of the error and of each cause, a line each, with the innermost frames as ``file:line in function``.

    Unlike a traceback it holds no messages of foreign exceptions and no source lines, which may spell out a prompt.
    """
    lines = []
    for link in _chain(error):
        frames = traceback.extract_tb(link.__traceback__)[-MAX_FRAMES:]
        where = "; ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
        lines.append(f"{told(link)} ({where})" if where else told(link))
    return "\ncaused by ".join(lines)


def _code(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno is not None:
        return errno.errorcode.get(error.errno)
    status = getattr(error, "status_code", None)
    return str(status) if type(status) is int else None


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not INSTALLED & set(Path(frame.filename).parts) and not frame.filename.startswith(NOT_OURS):
            return f" at {Path(frame.filename).name}:{frame.lineno}"
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, then what it was raised from or while handling, oldest last."""
    link: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
