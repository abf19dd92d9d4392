"""TensorBoard: event files under the run directory, rewritten from the journal at each start."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

FOLDER = "tensorboard"


class EventFiles:
    """The curves of a run in ``LOG_PATH/tensorboard``, numbers only.

    tinker-cookbook has no logger for TensorBoard, and ``torch.utils.tensorboard`` writes an event for each number; here
    one event is one row, so that a kill leaves whole rows.
    """

    def __init__(self, log_path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes a new file with ``rows``, then removes the older ones.

        A kill in between leaves both, which TensorBoard shows right: the new file begins with the order to forget what
        was shown before it. Rows that an older file has keep their time.
        """
        # Start-up time, and an optional dependency.
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = log_path / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        older = sorted(folder.glob("events.out.tfevents.*"))
        times = _times(older)
        # With a suffix of its own: after a quick restart in a container, second and process number can be those of an
        # older file, which would be overwritten here and removed below.
        self._writer = EventFileWriter(str(folder), filename_suffix=f".{uuid4().hex}")
        self._add(time.time(), step=0, session_log=SessionLog(status=SessionLog.START))
        for row in rows:
            self._add_row(row, times.get(row["step"], time.time()))
        self._writer.flush()
        for path in older:
            path.unlink()
        for path in folder.iterdir():
            path.chmod(0o600)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds the row, visible at once."""
        self._add_row(row, time.time())
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()

    def _add_row(self, row: Mapping[str, Any], unix_seconds: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # an optional dependency

        values = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if name != "step" and not isinstance(value, str)
        ]
        self._add(unix_seconds, step=row["step"], summary=Summary(value=values))

    def _add(self, unix_seconds: float, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # an optional dependency

        self._writer.add_event(Event(wall_time=unix_seconds, **fields))


def _times(paths: Sequence[Path]) -> dict[int, float]:
    """The Unix time in seconds of each step that the files hold; what a kill tore is left out."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader  # an optional dependency

    events = [event for path in paths for event in EventFileLoader(str(path)).Load()]
    return {event.step: event.wall_time for event in events if event.HasField("summary")}
