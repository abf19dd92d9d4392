"""An agent of ``varied``, in processes that write down where they write to, whom they call, and what they print."""

import os
import sys
from pathlib import Path
from typing import Any

from varied import TASKS, synchronous  # type: ignore[import-not-found]  # beside this file, to who runs it

__all__ = ["TASKS", "synchronous"]


def _opened(name: str) -> int:
    return os.open(name, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)


_witnessed, _printed = _opened("witnessed.txt"), _opened("printed.txt")


def _witness(event: str, arguments: tuple[Any, ...]) -> None:
    seen = None
    if event == "open" and isinstance(arguments[0], str) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen = f"write {Path(arguments[0]).absolute()}"
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        seen = f"call {arguments[1][0]}"
    elif event == "socket.getaddrinfo":
        seen = f"call {arguments[0]}"
    if seen:
        os.write(_witnessed, f"{seen}\n".encode())  # which raises no event


sys.addaudithook(_witness)
for stream in (1, 2):
    os.dup2(_printed, stream)
