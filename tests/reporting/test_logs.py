"""Laws of the logs: every line parses, carries the run's context, and holds no secret."""

import io
import json
import logging
import logging.config
import math
import re
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

import pytest
import structlog
from rich.console import Console

from orchestrator.errors import ConfigError
from orchestrator.redaction import Redactor, new_run_key
from orchestrator.reporting.lines import CONTEXT_FIELDS, WITHHELD
from orchestrator.reporting.logs import RunLogging, configure_logging

SECRET = "tml-SECRET123"  # noqa: S105 - looks like one, on purpose

Configure = Callable[..., RunLogging]


@pytest.fixture
def configure(tmp_path: Path) -> Iterator[Configure]:
    opened: list[RunLogging] = []

    def open_logging(**options: Any) -> RunLogging:
        options.setdefault("console", Console(file=io.StringIO()))
        opened.append(configure_logging(tmp_path, **options))
        return opened[-1]

    yield open_logging
    for handle in opened:
        handle.close()


def refuse(token: str) -> NoReturn:
    raise AssertionError(f"{token} is not strict JSON")


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    text = (tmp_path / "log.jsonl").read_text()
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def shown(handle: RunLogging) -> str:
    assert isinstance(handle.console.file, io.StringIO)
    return handle.console.file.getvalue()


def test_every_line_is_strict_json_whatever_it_holds(tmp_path: Path, configure: Configure) -> None:
    """H28: a UUID, bytes, NaN and an exception among the values of one event."""
    configure(level="debug")
    try:
        int("broken \udc80")
    except ValueError as error:
        structlog.get_logger("orchestrator.x").exception(
            "odd",
            id=UUID(int=7),
            raw=b"\xff\x00",
            nan=math.nan,
            inf=[-math.inf],
            error=error,
            keys={1: {2}},
            path=tmp_path,
        )
    (line,) = lines(tmp_path)
    assert line["id"] == str(UUID(int=7))
    assert (line["raw"], line["nan"], line["inf"], line["keys"]) == ("\\xff\x00", "nan", ["-inf"], {"1": [2]})
    assert line["error"].startswith("ValueError: invalid literal")
    assert "Traceback" in line["exception"]


def test_every_line_carries_the_run_context_third_party_threads_included(tmp_path: Path, configure: Configure) -> None:
    handle = configure()
    logging.getLogger("third.party").warning("before %s", "binding")
    handle.bind(run_id="r1", batch=3, state="Rollout", attempt=1, journal_seq=17)
    thread = threading.Thread(target=logging.getLogger("third.party").info, args=("from a thread",))
    thread.start()
    thread.join()
    with structlog.contextvars.bound_contextvars(rollout="000003-train-0000-000", batch=2):
        structlog.get_logger("orchestrator.x").info("ours")
    before, foreign, ours = lines(tmp_path)
    assert before["event"] == WITHHELD
    assert [before[field] for field in CONTEXT_FIELDS] == [None] * 5
    assert [foreign[field] for field in CONTEXT_FIELDS] == ["r1", 3, "Rollout", 1, 17]
    assert (ours["rollout"], ours["batch"]) == ("000003-train-0000-000", 3)
    assert foreign["at"].endswith("Z")
    assert (foreign["level"], foreign["logger"]) == ("info", "third.party")


def test_context_variables_alone_reach_the_line(tmp_path: Path, configure: Configure) -> None:
    configure()
    with structlog.contextvars.bound_contextvars(run_id="r1", batch=2):
        logging.getLogger("third.party").info("x")
    assert (lines(tmp_path)[0]["run_id"], lines(tmp_path)[0]["batch"]) == ("r1", 2)


def test_the_console_shows_our_own_lines_from_its_level_on_and_nothing_else(
    tmp_path: Path, configure: Configure
) -> None:
    handle = configure(level="warning")
    handle.bind(run_id="r1", batch=3)
    logging.getLogger("third.party").error("noise")
    logging.getLogger("httpx").info("one line a call")
    ours = structlog.get_logger("orchestrator.x")
    ours.debug("detail")
    ours.warning("look [here]", count=2)
    assert [line["event"] for line in lines(tmp_path)] == [WITHHELD, "detail", "look [here]"]
    assert shown(handle)[9:] == "warning  look [here]  batch=3 count=2\n"


def test_no_secret_reaches_file_or_console(tmp_path: Path, configure: Configure) -> None:
    handle = configure(
        level="debug", redact=Redactor({"TINKER_API_KEY": SECRET, "my_token": "longenough", "A_SECRET": "short"})
    )
    handle.redact.add("gateway-key")
    log = structlog.get_logger("orchestrator.x")

    def fail(key: str) -> NoReturn:
        raise RuntimeError(f"refused: Bearer {key}")

    try:
        fail(SECRET)
    except RuntimeError:
        log.exception("failed with %s", SECRET, headers={"Authorization": [f"Bearer {SECRET}".encode()]}, short="short")
        logging.getLogger("third.party").exception("failed with %s", "gateway-key")
    log.info("x", **{SECRET: "longenough"})
    everything = (tmp_path / "log.jsonl").read_text() + shown(handle)
    assert "RuntimeError" in everything
    assert "[redacted]" in everything
    for secret in (SECRET, "longenough", "gateway-key"):
        assert secret not in everything
    assert '"short": "short"' in everything


def test_a_secret_that_begins_another_leaves_no_rest() -> None:
    redact = Redactor({"A_API_KEY": "abcdefgh", "B_API_KEY": "abcdefgh-rest"})
    assert redact("x abcdefgh-rest abcdefgh y") == "x [redacted] [redacted] y"
    assert Redactor({})("nothing to hide") == "nothing to hide"
    assert Redactor({})(f"Bearer {new_run_key()}") == "Bearer [redacted]"


def test_tracebacks_do_not_show_local_variables(tmp_path: Path, configure: Configure) -> None:
    handle = configure()
    canary = "-".join(["CANARY", "77"])  # a local variable of this frame, whose source line does not hold it
    try:
        canary.index("absent")
    except ValueError:
        structlog.get_logger("orchestrator.x").exception("failed")
    assert "CANARY-77" not in (tmp_path / "log.jsonl").read_text() + shown(handle)


def raise_quoting(canary: str) -> None:
    no_answers: dict[str, str] = {}
    try:
        print(no_answers[canary])
    except KeyError as cause:
        raise RuntimeError(f"cannot answer {canary}") from cause


@pytest.mark.parametrize("level", ["info", "debug"])
def test_only_debug_quotes_what_others_say_and_what_exceptions_hold(
    tmp_path: Path, configure: Configure, level: str
) -> None:
    """H19: an agent that logs its prompt in every way there is, and exceptions that quote it."""
    handle = configure(level=level)
    canary = "-".join(["CANARY", "77"])
    theirs = logging.getLogger("my_agent")
    theirs.info(canary)
    theirs.warning("asked %s", canary, extra={"prompt": canary})
    structlog.get_logger("my_agent").info("asked", prompt=canary)
    warnings.warn(canary, stacklevel=1)
    with structlog.contextvars.bound_contextvars(prompt=canary):
        theirs.info("x")
    try:
        raise_quoting(canary)
    except RuntimeError as error:
        theirs.exception(canary)
        structlog.get_logger("orchestrator.x").exception("failed", error=error)
    thread = threading.Thread(target=raise_quoting, args=(canary,))
    thread.start()
    thread.join()
    written = (tmp_path / "log.jsonl").read_text() + shown(handle)
    assert (canary in written) is (level == "debug")
    assert [line["logger"] for line in lines(tmp_path)].count("my_agent") == 5
    (failed,) = [line for line in lines(tmp_path) if line["event"] == "failed"]
    (died,) = [line for line in lines(tmp_path) if line["event"] == "a thread died of an error"]
    if level == "info":
        place = r"RuntimeError at test_logs\.py:\d+"
        assert re.fullmatch(place, failed["error"])
        for line in (failed, died):
            assert re.match(place + r" \(.* in raise_quoting\)\ncaused by KeyError at test_logs\.py", line["exception"])


def test_what_the_service_says_of_waiting_is_told(tmp_path: Path, configure: Configure) -> None:
    configure()
    logging.getLogger("tinker.lib.queue_state_logger").warning("Training for %s is paused.\nmore", "m")
    assert lines(tmp_path)[0]["event"] == "Training for m is paused."


def test_a_log_that_cannot_be_opened_is_a_usage_error(tmp_path: Path, configure: Configure) -> None:
    (tmp_path / "log.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"log\.jsonl cannot be opened for writing \(Is a directory\)"):
        configure()


def test_the_file_is_private_and_appended_to_after_a_torn_line(tmp_path: Path, configure: Configure) -> None:
    path = tmp_path / "log.jsonl"
    with configure():
        pass
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"event":"first"}\n{"event":"to')
    configure()
    structlog.get_logger("orchestrator.x").info("next")
    first, torn, following = path.read_text().splitlines()
    assert (json.loads(first)["event"], torn, json.loads(following)["event"]) == ("first", '{"event":"to', "next")


@pytest.mark.parametrize(("terminal", "environ"), [(True, {}), (False, {}), (True, {"NO_COLOR": "1"})])
def test_colours_are_only_for_terminals_that_want_them(
    configure: Configure, terminal: bool, environ: dict[str, str]
) -> None:
    handle = configure(
        console=Console(file=io.StringIO(), force_terminal=terminal, _environ={"TERM": "xterm", **environ})
    )
    structlog.get_logger("orchestrator.x").error("seen")
    assert "seen" in shown(handle)
    assert ("\x1b[1;31m" in shown(handle)) == (terminal and not environ)


def test_console_handlers_of_libraries_are_taken_off_and_put_back(tmp_path: Path, configure: Configure) -> None:
    library = logging.getLogger("library.with.handler")
    handler = logging.StreamHandler(sys.stderr)
    library.addHandler(handler)
    library.propagate = False
    handle = configure()
    assert library.handlers == []
    library.warning("into the file")
    assert lines(tmp_path)[0]["place"].startswith("test_logs.py:")
    handle.close()
    assert (library.handlers, library.propagate) == ([handler], False)
    library.removeHandler(handler)


def test_closing_leaves_the_process_as_it_was_and_a_module_logger_follows(tmp_path: Path, configure: Configure) -> None:
    log = structlog.get_logger("orchestrator.x")
    before = (list(logging.root.handlers), logging.root.level)
    handle = configure()
    log.info("first")
    handle.close()
    handle.close()
    assert (list(logging.root.handlers), logging.root.level) == before
    configure()
    log.info("second")
    assert [line["event"] for line in lines(tmp_path)] == ["first", "second"]


def test_a_line_that_cannot_be_written_is_reported_once_and_without_its_text(
    tmp_path: Path, configure: Configure
) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")  # every write to it fails with ENOSPC, as on a full disk
    handle = configure()
    for _ in range(2):
        logging.getLogger("third.party").error("private text")
    assert shown(handle).replace("\n", " ").count("No space left on device") == 1
    assert "private text" not in shown(handle)


def test_warnings_and_third_party_lines_never_reach_the_streams_of_a_real_process(tmp_path: Path) -> None:
    program = (
        "import logging, warnings, structlog; from pathlib import Path; "
        "from orchestrator.reporting.logs import configure_logging; "
        f"run = configure_logging(Path({str(tmp_path)!r})); "
        "logging.getLogger('third').error('noise'); warnings.warn('old thing'); "
        "structlog.get_logger('orchestrator.x').info('ours'); run.close()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith(" info     ours\n")
    assert done.stderr.count("\n") == 1
    noise, warning, ours = lines(tmp_path)
    assert [line["logger"] for line in (noise, warning)] == ["third", "py.warnings"]
    assert (noise["event"], warning["event"], ours["event"]) == (WITHHELD, WITHHELD, "ours")
    assert (warning["place"], warning["category"]) == ("<string>:1", "UserWarning")


def test_lines_still_arrive_after_a_library_has_configured_logging_for_itself(tmp_path: Path) -> None:
    handle = configure_logging(tmp_path, console=Console(file=io.StringIO()))
    try:
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
        logging.getLogger("orchestrator.after").info("still here")
    finally:
        handle.close()
    assert "still here" in (tmp_path / "log.jsonl").read_text()
