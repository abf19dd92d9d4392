"""Trackio: a run in the database of this machine, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL say."""

from collections.abc import Mapping, Sequence
from typing import Any


class TrackioRun:
    """One run of a project, named after our run.

    Not through tinker-cookbook's logger: it starts a new run each time, and its rows get random identifiers. Trackio
    drops a second row of the same identifier wherever it is stored or buffered, so here a row's is a function of run
    and step, and a row may be sent as often as one likes.
    """

    def __init__(self, project: str, run_id: str, config: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
        """Opens the run, or makes it, and sends it ``rows``."""
        import trackio  # start-up time, and an optional dependency

        self._run_id = run_id
        self._run = trackio.init(
            project=project,
            name=run_id,
            config=dict(config),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        for row in rows:
            self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        """Leaves the row to Trackio's own thread, which stores it within half a second."""
        run = self._run
        entry = {
            "project": run.project,
            "run": run.name,
            "run_id": run.id,
            "metrics": {name: value for name, value in row.items() if name != "step"},
            "step": row["step"],
            "config": run.config,
            "log_id": f"{self._run_id}-{row['step']}",
        }
        # What ``Run.log`` does, but for the identifier, which it does not let one choose.
        with run._queue_lock:  # noqa: SLF001
            run._queued_logs.append(entry)  # noqa: SLF001
            run._ensure_sender_alive()  # noqa: SLF001

    def close(self) -> None:
        """Waits until Trackio has stored what it was left."""
        self._run.finish()
