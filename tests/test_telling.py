"""How exceptions are told: our own in their words, everybody else's by type and place."""

import errno
import os
from pathlib import Path

import pytest
import tinker

from orchestrator.backends.local.status_errors import bad_request
from orchestrator.errors import DriftError
from orchestrator.telling import MAX_CAUSES, told, trace


def raised(error: Exception, *, cause: Exception | None = None) -> Exception:
    """``error`` as it is caught."""
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_our_own_errors_are_told_whole_those_of_the_embedded_backend_included() -> None:
    assert told(raised(DriftError("seed was 1 and is 2"))) == "seed was 1 and is 2"
    refused = raised(bad_request("prompt: 9 tokens leave no room"))
    assert isinstance(refused, tinker.BadRequestError)
    assert told(refused) == "prompt: 9 tokens leave no room"


def test_a_foreign_error_is_told_by_type_and_place_only() -> None:
    assert told(raised(ValueError("CANARY-77"))).startswith("ValueError at test_telling.py:")
    assert told(ValueError("CANARY-77")) == "ValueError"


def test_the_place_is_the_innermost_line_outside_of_installed_libraries() -> None:
    with pytest.raises(ValueError, match="CANARY") as caught:
        tinker.types.SamplingParams(stop="x", max_tokens="CANARY-77")  # type: ignore[arg-type]
    assert told(caught.value).startswith("ValidationError at test_telling.py:")


def test_what_is_countable_about_a_foreign_error_is_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="absent") as caught:
        os.stat(tmp_path / "absent")  # noqa: PTH116 - its frame is here
    assert told(caught.value).startswith("FileNotFoundError ENOENT at test_telling.py:")
    assert told(OSError("CANARY-77")) == "OSError"
    assert told(OSError(errno.ENOSPC, "CANARY-77")) == "OSError ENOSPC"
    refused = bad_request("x")
    foreign = tinker.BadRequestError("CANARY-77", response=refused.response, body=None)
    assert told(foreign) == "BadRequestError 400"


def test_a_trace_has_the_causes_and_neither_messages_nor_source_lines() -> None:
    cause = raised(KeyError("CANARY-77"))
    lines = trace(raised(RuntimeError("CANARY-77"), cause=cause)).splitlines()
    assert [line.split(" at ")[0] for line in lines] == ["RuntimeError", "caused by KeyError"]
    assert all("in raised)" in line for line in lines)
    assert "CANARY" not in "".join(lines)


def test_a_trace_ends() -> None:
    error: Exception = ValueError("0")
    for _ in range(50):
        error = raised(ValueError("n"), cause=error)
    assert len(trace(error).splitlines()) == MAX_CAUSES
