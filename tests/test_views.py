"""Views are caches of the journal: missing, torn or made up, they are rewritten from it and decide nothing."""

import json
from pathlib import Path
from typing import Any

from processes import fixture_d, run_child

from orchestrator.journal.log import read_journal
from orchestrator.testing import outcome_of_run


def test_torn_and_foreign_rows_of_the_views_are_rewritten_whole(killed: Path, uninterrupted: dict[str, Any]) -> None:
    """H6: a good row of a batch that was never trained, a torn one and a blank line; metrics torn likewise."""
    log_path = killed / "run"
    made_up = {"name": "000002", "batch": 2, "state_path": "local://nowhere/weights/000002"}
    (log_path / "checkpoints.jsonl").write_text(f'{json.dumps(made_up)}\n{{"name": "0000\n\n')
    (log_path / "metrics.jsonl").write_text('{"step": 0, "rollout/tot')
    (log_path / "config.json").write_text("{")
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(log_path) == uninterrupted
    rows = [json.loads(line) for line in (log_path / "checkpoints.jsonl").read_text().splitlines()]
    live = [(kept.name, kept.batch, kept.state_path) for kept in read_journal(log_path).run.checkpoints]
    assert [(row["name"], row["batch"], row["state_path"]) for row in rows] == live
    assert json.loads((log_path / "config.json").read_text())["batch_size"] == 2


def test_missing_views_are_made_again(killed: Path, uninterrupted: dict[str, Any]) -> None:
    log_path = killed / "run"
    for name in ("checkpoints.jsonl", "metrics.jsonl", "config.json", "log.jsonl"):
        (log_path / name).unlink()
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(log_path) == uninterrupted
    assert (log_path / "checkpoints.jsonl").exists()
