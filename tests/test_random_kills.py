"""One run killed at random points, recovery included, comes to what an undisturbed run comes to."""

from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

from processes import fixture_d, start_child, wait_for

from orchestrator.rollouts.capture import call_seed
from orchestrator.rollouts.outcomes import RolloutKey, StoredRollout
from orchestrator.testing import KillAtNumber, outcome_of_run, read_ledger

NUM_KILLS = 6
FARTHEST_POINT = 120
"""A whole run of fixture D passes about 500 points, a recovery from the start of a batch about 40."""
RUN_SEED = 42
TURNS = 2
KEYS = [RolloutKey(batch, "train", group, member) for batch in range(3) for group in range(2) for member in range(2)]


def finished_rollouts(log_path: Path) -> set[RolloutKey]:
    """The rollouts whose last attempt is stored; a torn line is no line."""
    stored = set()
    for path in (log_path / "rollouts").glob("*.jsonl"):
        text = path.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        stored |= {rollout.key for rollout in map(StoredRollout.from_json, lines) if rollout.last}
    return stored


def calls_by_process(ledger: Path) -> dict[int, list[RolloutKey]]:
    """For each process, the rollout of each sample call: the one whose key gives the call its seed."""
    calls: dict[int, list[RolloutKey]] = defaultdict(list)
    for line in read_ledger(ledger):
        if line["request"] == "sample":
            prompt, seed = line["prompt"][0], line["seed"][0]
            (key,) = [key for key in KEYS if call_seed(RUN_SEED, key, 0, prompt, 0) == seed]
            calls[line["pid"]].append(key)
    return calls


def test_random_kills_cost_only_the_unfinished_rollouts(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    """Whoever makes a call again makes it for a rollout that no process before had finished."""
    random = Random(0)
    points: list[str] = []
    finished_at_start: dict[int, set[RolloutKey]] = {}
    for kill in range(NUM_KILLS):
        note = tmp_path / f"point-{kill}"
        finished = finished_rollouts(tmp_path / "run")
        process = start_child(fixture_d(tmp_path, observer=KillAtNumber(random.randrange(FARTHEST_POINT), note)))
        finished_at_start[process.pid] = finished
        assert wait_for(process) == -9, f"finished before kill {kill}: {points}"
        points.append(note.read_text())
    finished = finished_rollouts(tmp_path / "run")
    process = start_child(fixture_d(tmp_path))
    finished_at_start[process.pid] = finished
    assert wait_for(process) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted, points

    for pid, calls in calls_by_process(tmp_path / "ledger.jsonl").items():
        counts = Counter(calls)
        assert not finished_at_start[pid] & counts.keys(), f"a stored rollout was sampled again after {points}"
        assert max(counts.values()) <= TURNS
    assert finished_at_start[process.pid], f"no kill came after a rollout was stored: {points}"
