"""What one line of the log holds: the run's context, JSON values without secrets, and nothing that quotes a prompt.

Our own lines hold no prompt or completion, and exceptions are told as ``telling`` says. Agents and libraries may quote
a prompt in any word that they log, so of their lines there is the logger, the level and the place, and not the text.
``log_level=debug`` asks for all of it, as it does for the messages of exceptions.
"""

import logging
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import structlog
from structlog.typing import EventDict

from orchestrator.redaction import Redactor
from orchestrator.telling import told, trace

CONTEXT_FIELDS = ("run_id", "batch", "state", "attempt", "journal_seq")
"""On every line of ``log.jsonl``, null where not known."""
OWN_LOGGERS = ("orchestrator", "states", "__main__")
QUOTING_NOTHING = (
    "agentlightning.utils.server_launcher",
    "tinker.lib.internal_client_holder",
    "tinker.lib.queue_state_logger",
    "transitions.core",
)
"""Of these the text is told: they have no request in hand, and say why the service makes a run wait, for one."""
_WARNING = re.compile(r"(.+?):(\d+): (\w+): ")
"""How a line of ``py.warnings`` begins: where it was warned, and of what kind."""
WITHHELD = "text withheld: log_level=debug tells it"


def line_fields(event: EventDict, *, context: Mapping[str, Any], redact: Redactor, quotes: bool) -> EventDict:
    """One line's fields in their order, from what structlog's ``ProcessorFormatter`` hands to its processors.

    ``context`` is what is known of ``CONTEXT_FIELDS``. With ``quotes`` the texts of others and the messages of
    exceptions are told as well.
    """
    record: logging.LogRecord = event.pop("_record")
    del event["_from_structlog"]
    own = record.name.partition(".")[0] in OWN_LOGGERS
    narrow = structlog.contextvars.get_contextvars()
    if quotes:
        event = dict(structlog.processors.format_exc_info(None, "", event))
    else:
        error = _exception_of(event.pop("exc_info", None))
        if not own:
            event = _without_quotes(record, event)
            narrow = {key: narrow[key] for key in CONTEXT_FIELDS if key in narrow}
        if error is not None:
            event["exception"] = trace(error)
    known = {key: value for key, value in context.items() if value is not None or key not in narrow}
    fields = {
        "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "event": event.pop("event", None),
        "logger": record.name,
        **dict.fromkeys(CONTEXT_FIELDS),
        **narrow,
        **known,
        **event,
    }
    return cast(EventDict, _json_value(fields, redact, quotes=quotes))


def _without_quotes(record: logging.LogRecord, event: EventDict) -> EventDict:
    """What may be told of a line that is not ours."""
    if record.name in QUOTING_NOTHING:
        return {"event": str(event.get("event", "")).partition("\n")[0]}
    warned = _WARNING.match(record.getMessage()) if record.name == "py.warnings" else None
    if warned is not None:
        return {"event": WITHHELD, "place": f"{Path(warned[1]).name}:{warned[2]}", "category": warned[3]}
    return {"event": WITHHELD, "place": f"{record.filename}:{record.lineno}"}


def _exception_of(info: Any) -> BaseException | None:
    """The exception that a line is about, from any of the forms that ``exc_info`` may have."""
    if isinstance(info, BaseException):
        return info
    if isinstance(info, tuple):
        return cast("BaseException | None", info[1])
    return sys.exc_info()[1] if info else None


def _json_value(value: Any, redact: Redactor, *, quotes: bool) -> Any:
    """``value`` as strict JSON: text for whatever JSON has no word for, NaN and the infinities included.

    ``quotes``: whether exceptions are told with their messages.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, bytes):
        return redact(value.decode("utf-8", "backslashreplace"))
    if isinstance(value, Mapping):
        return {redact(str(key)): _json_value(item, redact, quotes=quotes) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_json_value(item, redact, quotes=quotes) for item in value]
    if isinstance(value, BaseException):
        return redact(f"{type(value).__name__}: {value}" if quotes else told(value))
    return redact(str(value))
