"""Reads back what trackers hold of a run: (step, values) for each row, in the order in which they are stored."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

BLOCK_BYTES = 32_768
FILE_HEADER_BYTES = CHUNK_HEADER_BYTES = 7
FIRST_CHUNK, MIDDLE_CHUNK = 2, 3

View = list[tuple[int, dict[str, Any]]]


def metric_view(log_path: Path) -> View:
    """The rows of ``metrics.jsonl``."""
    rows = [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]
    return [(row.pop("step"), row) for row in rows]


def tensorboard_view(log_path: Path) -> View:
    """The rows of all event files; their numbers are of single precision."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    view: View = []
    for path in sorted((log_path / "tensorboard").iterdir()):
        for event in LegacyEventFileLoader(str(path)).Load():
            if event.HasField("summary"):
                view.append((event.step, {value.tag: value.simple_value for value in event.summary.value}))
    return view


def trackio_view(folder: Path, run_id: str) -> View:
    """The rows of one run of project p in Trackio's database."""
    with closing(sqlite3.connect(folder / "p.db")) as database:
        query = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
        return [(step, json.loads(metrics)) for step, metrics in database.execute(query, (run_id,))]


def wandb_view(log_path: Path, run_id: str) -> View:
    """The history of all offline runs of one id."""
    view: View = []
    for record in wandb_records(log_path, run_id):
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            values = {name: json.loads(value) for name, value in items.items() if not name.startswith("_")}
            view.append((record.history.step.num, values))
    return view


def wandb_records(log_path: Path, run_id: str) -> Iterator[Any]:
    """The records of all offline runs of one id."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted((log_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb")):
        yield from map(Record.FromString, _leveldb_records(path.read_bytes()))


def _leveldb_records(data: bytes) -> Iterator[bytes]:
    """A ``.wandb`` file is a log in LevelDB's format, which W&B itself reads in Go only."""
    offset, parts = FILE_HEADER_BYTES, b""
    while offset + CHUNK_HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - offset % BLOCK_BYTES
        if left < CHUNK_HEADER_BYTES:
            offset += left
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        offset += CHUNK_HEADER_BYTES
        parts += data[offset : offset + length]
        offset += length
        if kind not in {FIRST_CHUNK, MIDDLE_CHUNK}:
            yield parts
            parts = b""
