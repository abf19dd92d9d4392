"""Measurements in processes of their own: forked from this one, which has imported the libraries and has no thread."""

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class MeasurementError(RuntimeError):
    """A measurement ended without a result."""


def forked(output: Path, measure: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """What ``measure(*arguments)`` gives in a fresh process, which prints into ``output``.

    A measurement may fork further ones for as long as it has started no thread itself.

    Raises:
        MeasurementError: it raised, or died.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(output, sender, measure, arguments))
    process.start()
    sender.close()
    try:
        succeeded, result = receiver.recv()
    except EOFError:
        succeeded, result = False, "it died without a word"
    process.join()
    if not succeeded:
        raise MeasurementError(f"{measure.__module__}.{measure.__qualname__}: {result}\n{output} has what it printed")
    return result  # type: ignore[no-any-return]  # as measure gave it


def _child(output: Path, sender: Connection, measure: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
    try:
        result = (True, measure(*arguments))
    except BaseException:  # whatever it is, the parent tells it
        result = (False, traceback.format_exc())
    sender.send(result)
    sender.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # servers and backends have threads that need no taking down
