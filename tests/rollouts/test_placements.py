"""Wherever agents run, the run stores the same bytes; a worker that dies costs its rollout nothing but time."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from placed_runs import external, running, stored_rollouts
from processes import Child, fixture_d, run_child, start_child, wait_for

from orchestrator.rollouts.outcomes import Outcome
from orchestrator.testing import KillAt, outcome_of_run, read_ledger

VARIED = ("train_dataset=varied:TASKS", "val_dataset=varied:TASKS", "max_no_progress_batches=9")


def run_with_workers(child: Child) -> int:
    """As ``run_child``, for a run that has children."""
    return wait_for(start_child(child, daemon=False))


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """What a run of ``varied`` stores when its agent runs in its own process."""

    @cache
    def run(agent: str) -> dict[str, bytes]:
        child = fixture_d(tmp_path_factory.mktemp("inline"), f"agent={agent}", *VARIED)
        assert run_child(child) == 0, child.output
        return stored_rollouts(child)

    return run


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("varied:agent", []),
        ("varied:synchronous", []),
        ("varied:agent", ["adapter=proxy", "gateway=llm_proxy"]),
    ],
)
def test_however_agents_end_worker_processes_store_the_same_bytes(
    agent: str, settings: list[str], inline: Any, tmp_path: Path
) -> None:
    child = fixture_d(tmp_path, f"agent={agent}", *VARIED, "placement=processes", "num_workers=2", *settings)
    assert run_with_workers(child) == 0, child.output
    stored = stored_rollouts(child)
    assert stored == inline(agent)
    outcomes = {json.loads(line)["outcome"] for file in stored.values() for line in file.splitlines()}
    assert outcomes == {"succeeded", "failed", "empty", "invalid"}


def test_what_worker_processes_trace_stores_the_same_bytes_and_goes_nowhere_else(inline: Any, tmp_path: Path) -> None:
    """The tracer is that of a service on the network, with a log file and a console of its own."""
    child = fixture_d(tmp_path, "agent=witnessed:synchronous", *VARIED, "placement=processes", "adapter=tracer")
    assert run_with_workers(child) == 0, (tmp_path / "printed.txt").read_text()
    assert stored_rollouts(child) == inline("varied:synchronous")
    seen = [line.partition(" ") for line in (tmp_path / "witnessed.txt").read_text().splitlines()]
    assert {whom for what, _, whom in seen if what == "call"} == {"127.0.0.1"}
    written = {Path(path) for what, _, path in seen if what == "write"} - {child.ledger}
    assert [path for path in written if not path.is_relative_to(child.log_path)] == []
    assert "agentops" not in (tmp_path / "printed.txt").read_text().lower()


@pytest.mark.parametrize("adapter", ["adapter=capture", "adapter=tracer"])
def test_however_agents_end_external_workers_store_the_same_bytes(adapter: str, inline: Any, tmp_path: Path) -> None:
    child, runner = external(tmp_path, "agent=varied:agent", *VARIED, adapter)
    with running(runner("num_workers=2", adapter)):
        assert run_child(child) == 0, child.output
    assert stored_rollouts(child) == inline("varied:agent")


def test_the_rollout_of_a_killed_worker_is_played_again_and_stores_the_same_bytes(
    tmp_path: Path, uninterrupted_child: Child
) -> None:
    child = fixture_d(tmp_path, "agent=deadly:dies_once", "placement=processes", "num_workers=2")
    assert run_with_workers(child) == 0, child.output
    assert (tmp_path / "played").exists()
    assert "a worker died and is replaced" in child.output
    assert stored_rollouts(child) == stored_rollouts(uninterrupted_child)
    calls = [
        len([line for line in read_ledger(run.ledger) if line["request"] == "sample"])
        for run in (child, uninterrupted_child)
    ]
    assert calls[0] <= calls[1] + 1, "only the killed turn is paid for twice"


def test_a_run_killed_while_its_workers_trace_is_resumed_and_comes_to_the_same(
    tmp_path: Path, uninterrupted_child: Child
) -> None:
    """H33: what was sampled is not sampled again, and the spans of the second play tell it."""
    traced = ("agent=agents_sdk:agent", "placement=processes", "num_workers=2", "adapter=tracer")
    killed = fixture_d(tmp_path, *traced, observer=KillAt("request:before:sample", 8 + 5))
    assert run_with_workers(killed) == -9
    assert run_with_workers(fixture_d(tmp_path, *traced)) == 0, killed.output
    assert outcome_of_run(killed.log_path) == outcome_of_run(uninterrupted_child.log_path)


def test_a_run_killed_with_its_workers_is_resumed_in_one_process(tmp_path: Path, uninterrupted_child: Child) -> None:
    """H3: the last call of batch 1 is not made."""
    killed = fixture_d(
        tmp_path, "placement=processes", "num_workers=2", observer=KillAt("request:before:sample", 8 + 8)
    )
    assert run_with_workers(killed) == -9
    assert run_child(fixture_d(tmp_path)) == 0, killed.output
    assert outcome_of_run(killed.log_path) == outcome_of_run(uninterrupted_child.log_path)


def test_a_rollout_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    child = fixture_d(tmp_path, "agent=deadly:dies_always", "placement=processes", "num_workers=2", "max_batches=2")
    assert run_with_workers(child) == 0, child.output
    lines = [json.loads(line) for line in stored_rollouts(child)["000001.train.jsonl"].splitlines()]
    failed = [line for line in lines if line["outcome"] != Outcome.SUCCEEDED]
    assert [(line["group"], line["member"], line["outcome"]) for line in failed] == [(0, 1, Outcome.FAILED)]
    assert failed[0]["error"].startswith("WorkerLost: 3 workers were lost")


def test_an_agent_that_sleeps_in_a_worker_is_cut_off_at_its_deadline_and_its_worker_replaced(tmp_path: Path) -> None:
    """H12: what sleeps on, in a thread, shares its process with no other rollout."""
    child = fixture_d(
        tmp_path,
        "agent=troubled:one_sleeps",
        "placement=processes",
        "num_workers=1",
        "rollout_timeout_seconds=2",
        "max_batches=1",
    )
    assert run_with_workers(child) == 0, child.output
    lines = [json.loads(line) for line in stored_rollouts(child)["000000.train.jsonl"].splitlines()]
    assert [line["outcome"] for line in lines] == ["succeeded", "timed_out", "succeeded", "succeeded"]
    first, sleeping, *later = (tmp_path / "players.txt").read_text().split()
    assert first == sleeping
    assert len(later) == 2
    assert sleeping not in later
