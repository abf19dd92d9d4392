"""What the journal speaks of is on the disk before the record is: the law that a power cut would put to the test."""

from pathlib import Path

from observers import NoteSteps
from processes import fixture_d, run_child

JOURNAL = "journal.jsonl"
SETTINGS = ("save_every=2", "rolling_save_every=1", "val_dataset=troubled:VAL_TASKS", "eval_every=2")


def test_every_byte_and_name_is_synced_before_the_next_record_is_written(tmp_path: Path) -> None:
    """A written file is synced, and the folder of a renamed one, before another record relies on either."""
    steps = tmp_path / "steps.txt"
    assert run_child(fixture_d(tmp_path, *SETTINGS, disk=NoteSteps(tmp_path / "run", steps))) == 0
    unsynced: set[str] = set()
    parts: dict[str, set[str]] = {"write": set(), "rename": set(), "sync": set()}
    records = 0
    for line in steps.read_text().splitlines():
        step, path = line.split()
        parts[step].add(path.split("/")[0])
        if step == "sync":
            unsynced.discard(path)
            continue
        if path == JOURNAL:
            records += 1
            assert unsynced == set(), f"record {records} is written before these are on the disk"
        unsynced.add(path if step == "write" else str(Path(path).parent))
    assert unsynced == set()
    assert records > 40
    assert parts["write"] >= {
        JOURNAL,
        "rollouts",
        "turns",
        "datums",
        "metrics.jsonl",
        "checkpoints.jsonl",
        "config.json",
        "local",
    }
    assert parts["rename"] >= {"datums", "metrics.jsonl", "checkpoints.jsonl", "config.json", "local"}
