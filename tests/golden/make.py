"""Makes the golden journals of the current format: real runs of fixture D, and what their journals fold to.

``PYTHONPATH=.:tests python -m golden.make`` writes ``v<FORMAT_VERSION>/<story>/{journal.jsonl,fold.json}`` where the
folder of the version is missing; journals once made are never made again, because they must fold for ever.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from observers import QuoteAt
from processes import fixture_d, run_child

from orchestrator.journal.log import JOURNAL_NAME, read_journal
from orchestrator.journal.records import FORMAT_VERSION, Record, encode
from orchestrator.journal.recovery import RunState
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt

FOLDER = Path(__file__).parent
HOST = "ada"
"""Who made the journal is not to be kept in it."""
IN_TRAIN_STEP = len(CYCLE) + CYCLE.index(State.TRAIN_STEP)


def finished(folder: Path) -> None:
    """A run that nothing disturbed, with an evaluation and every kind of checkpoint."""
    settings = ("val_dataset=troubled:VAL_TASKS", "eval_every=2", "save_every=2", "rolling_save_every=1")
    assert run_child(fixture_d(folder, *settings)) == 0


def killed(folder: Path) -> None:
    """A run that failed in TrainStep of batch 1, was taken up, and was killed there."""
    point = "append:after:state_entered"
    assert run_child(fixture_d(folder, "max_retries=1", observer=QuoteAt(point, IN_TRAIN_STEP, "as planned"))) == 1
    assert run_child(fixture_d(folder, "max_retries=1", observer=KillAt(point))) == -9


def drifted(folder: Path) -> None:
    """A run of two batches that was finished, then extended by one under another learning rate, which was accepted."""
    assert run_child(fixture_d(folder, "max_batches=2")) == 0
    assert run_child(fixture_d(folder, "learning_rate=0.002", "allow_drift=learning_rate")) == 0


def rebuilt(folder: Path) -> None:
    """A run that lost its training client in TrainStep of batch 1, made it again, and was extended.

    The process that extended it probed the backend.
    """
    lost = QuoteAt("request:after:optim_step", 1, "a poisoned client")
    assert run_child(fixture_d(folder, "max_batches=2", observer=lost)) == 0
    assert run_child(fixture_d(folder, "probe_optimizer_restore=true")) == 0


STORIES: dict[str, Callable[[Path], None]] = {story.__name__: story for story in (finished, killed, drifted, rebuilt)}


def folded(run: RunState) -> dict[str, Any]:
    """A fold as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(run)))
    return values


def main() -> None:
    """Makes what is missing of the current version."""
    for name, tell in STORIES.items():
        kept = FOLDER / f"v{FORMAT_VERSION}" / name
        if kept.exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            tell(Path(folder))
            reading = read_journal(Path(folder) / "run")
        kept.mkdir(parents=True)
        lines = [
            encode(Record(record.seq, record.at, record.kind, _without_host(record.fields)))
            for record in reading.records
        ]
        (kept / JOURNAL_NAME).write_bytes(b"".join(lines))
        fold = json.dumps(folded(read_journal(kept).run), indent=1, sort_keys=True)
        (kept / "fold.json").write_text(f"{fold}\n")
        print(f"{kept}: {len(lines)} records", file=sys.stderr)


def _without_host(fields: Any) -> dict[str, Any]:
    return {name: HOST if name == "host" else value for name, value in fields.items()}


if __name__ == "__main__":
    main()
