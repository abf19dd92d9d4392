"""Laws of the trackers: what leaves, that nobody waits for them, and that TensorBoard's files are a view."""

import asyncio
import math
import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog

from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.redaction import Redactor
from orchestrator.reporting.trackers.event_files import EventFiles
from orchestrator.reporting.trackers.feed import TrackerFeed, Trackers, sendable
from orchestrator.reporting.trackers.requirements import check_trackers

ROWS = [{"step": step, "a/x": step / 2, "a/why": "text"} for step in range(3)]


class Recording:
    """Keeps its rows, and does with each what it is told to."""

    def __init__(self, act: Any = lambda _row: None) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self.closed = False
        self._act = act

    def open(self, rows: Sequence[Mapping[str, Any]]) -> "Recording":
        self.rows += rows
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        self._act(row)
        self.rows.append(row)

    def close(self) -> None:
        self.closed = True


def test_only_finite_numbers_and_texts_without_secrets_leave() -> None:
    row = {"step": 1, "a": math.nan, "b": -math.inf, "c": None, "d": {"e": 1}, "f": "key is abcdefgh", "g": 0.5}
    assert sendable(row, Redactor({"A_KEY": "abcdefgh"})) == {"step": 1, "f": "key is [redacted]", "g": 0.5}


def test_rows_go_to_every_tracker_in_order_after_those_of_the_journal() -> None:
    recordings = [Recording(), Recording()]
    trackers = Trackers([TrackerFeed("x", one.open, ROWS[:1]) for one in recordings], Redactor({}))
    for row in ROWS[1:]:
        trackers.write(row)
    asyncio.run(trackers.close())
    assert [one.rows for one in recordings] == [ROWS, ROWS]
    assert all(one.closed for one in recordings)


@pytest.mark.parametrize("fails", ["open", "write"])
def test_a_tracker_that_raises_is_told_of_once_and_the_others_go_on(fails: str) -> None:
    def refuse(_rows: object) -> Any:
        raise ConnectionError("no network")

    sound = Recording()
    with structlog.testing.capture_logs() as logged:
        broken = TrackerFeed("broken", refuse if fails == "open" else Recording(refuse).open, [])
        trackers = Trackers([broken, TrackerFeed("sound", sound.open, [])], Redactor({}))
        for row in ROWS:
            trackers.write(row)
        asyncio.run(trackers.close())
    assert sound.rows == ROWS
    (line,) = logged
    assert (line["log_level"], line["tracker"]) == ("warning", "broken")
    assert line["error"] == "ConnectionError: no network"


def test_nobody_waits_for_a_tracker_that_hangs() -> None:
    """Neither who writes a row nor, past a deadline, who ends the process."""
    let_go = threading.Event()
    hanging = TrackerFeed("hanging", Recording(lambda _row: let_go.wait()).open, [])
    trackers = Trackers([hanging], Redactor({}))
    for row in ROWS:
        trackers.write(row)
    with structlog.testing.capture_logs() as logged:
        asyncio.run(trackers.close(timeout_seconds=0.05))
    assert [line["tracker"] for line in logged] == ["hanging"]
    assert not hanging.join(0)
    let_go.set()
    assert hanging.join(10)


def test_a_missing_package_is_named_with_what_asks_for_it() -> None:
    asked: dict[str, dict[str, Any]] = {
        "wandb": {"wandb_project": "p"},
        "trackio": {"trackio_project": "p"},
        "tensorboard": {"tensorboard": True},
        "plotly": {"span_chart_every": 5},
    }
    for package, setting in asked.items():
        with pytest.raises(ConfigError, match=f"{next(iter(setting))}=.*pip install {package}`"):
            check_trackers(Config(**setting), find=lambda _package: None)
    check_trackers(Config(), find=lambda _package: None)


class TestEventFiles:
    """TensorBoard's files, read with its own reader."""

    @staticmethod
    def shown(log_path: Path) -> list[tuple[int, float]]:
        """Steps and values of a/x as TensorBoard shows them."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(log_path / "tensorboard"))
        accumulator.Reload()
        return [(event.step, event.value) for event in accumulator.Scalars("a/x")]

    @staticmethod
    def filled(log_path: Path, rows: Sequence[Mapping[str, Any]], more: Sequence[Mapping[str, Any]] = ()) -> None:
        files = EventFiles(log_path, rows)
        for row in more:
            files.write(row)
        files.close()

    def test_they_hold_the_journals_rows_and_no_others(self, tmp_path: Path) -> None:
        """Rows that an earlier process wrote and the journal does not have are gone, those it has are there once."""
        foreign = [{"step": 7, "a/x": 7.0}, {"step": 1, "a/x": 8.0}]
        self.filled(tmp_path, ROWS[:1], foreign)
        self.filled(tmp_path, ROWS[:2], ROWS[2:])
        assert self.shown(tmp_path) == [(0, 0.0), (1, 0.5), (2, 1.0)]
        assert len(list((tmp_path / "tensorboard").iterdir())) == 1

    def test_a_kill_before_the_older_file_is_removed_shows_no_row_twice(self, tmp_path: Path) -> None:
        self.filled(tmp_path, [], [*ROWS, {"step": 3, "a/x": 9.0}])
        (older,) = (tmp_path / "tensorboard").iterdir()
        kept = shutil.copy(older, tmp_path / "kept")
        self.filled(tmp_path, ROWS)
        shutil.copy(kept, older)
        assert self.shown(tmp_path) == [(0, 0.0), (1, 0.5), (2, 1.0)]

    def test_a_torn_file_is_replaced_and_its_rows_keep_their_time(self, tmp_path: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        def times() -> list[float]:
            accumulator = EventAccumulator(str(tmp_path / "tensorboard"))
            accumulator.Reload()
            return [event.wall_time for event in accumulator.Scalars("a/x")]

        self.filled(tmp_path, [], ROWS)
        before = times()
        (path,) = (tmp_path / "tensorboard").iterdir()
        path.write_bytes(path.read_bytes()[:-5])
        self.filled(tmp_path, ROWS)
        after = times()
        assert after[:2] == before[:2]
        assert len(after) == len(ROWS)

    def test_they_are_their_owners_alone(self, tmp_path: Path) -> None:
        self.filled(tmp_path, ROWS)
        folder = tmp_path / "tensorboard"
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700
