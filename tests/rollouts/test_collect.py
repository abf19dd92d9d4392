"""Laws of collecting: what is stored is never run again, and the bytes do not tell what finished first."""

import asyncio
import itertools
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import agentlightning as agl
import openai
import pytest
import structlog

from orchestrator.errors import SideFileDamagedError, StateFailedError
from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.collect import Collector, CollectProgress
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn
from orchestrator.testing import FakeSamplingClient

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
Plan = dict[tuple[int, int, int], Outcome]
"""Outcomes by group, member and attempt; what is not named succeeds."""


class PlannedRunner:
    """Ends attempts as planned, in the planned order, and remembers what it ran."""

    def __init__(self, plan: Plan | None = None, *, finish_order: Sequence[tuple[int, int]] = ()) -> None:
        self.plan = plan or {}
        self.ran: list[tuple[int, int, int]] = []
        self.tasks: list[Any] = []
        self.num_running = self.most_running = 0
        self.after = dict(zip(finish_order[1:], finish_order[:-1], strict=True))
        self.done = {member: asyncio.Event() for member in finish_order}

    async def run(self, key: RolloutKey, *, attempt: int, task: Any, resources_id: str) -> AttemptResult:
        self.ran.append((key.group, key.member, attempt))
        self.tasks.append(task)
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        before = self.after.get((key.group, key.member))
        if before is not None:
            await self.done[before].wait()
        await asyncio.sleep(0)
        self.num_running -= 1
        outcome = self.plan.get((key.group, key.member, attempt), Outcome.SUCCEEDED)
        succeeded = outcome is Outcome.SUCCEEDED
        turn = Turn((1, key.group), (5 + key.member, 2), (-0.25, -0.5), key.batch, "stop")
        if (key.group, key.member) in self.done:
            self.done[key.group, key.member].set()
        error = None if succeeded else f"KeyError at my_agent.py:8: 'CANARY-77' ({outcome} as planned)"
        return AttemptResult(outcome, 0.5 if succeeded else None, (turn,), error)


async def collect(
    runner: Any,
    path: Path,
    *,
    concurrency: int = 8,
    max_retries: int = 0,
    on_failure: Literal["drop_member", "drop_group", "stop"] = "drop_member",
    stop: asyncio.Event | None = None,
    on_progress: Callable[[CollectProgress], None] = lambda _: None,
    tasks: Sequence[Any] = ("a", "b"),
    resources_id: str = "r",
) -> list[StoredRollout]:
    collector = Collector(runner, concurrency=concurrency, max_retries=max_retries, on_failure=on_failure, decode=str)
    return await collector.collect(
        batch=3,
        mode="train",
        tasks=tasks,
        group_size=2,
        resources_id=resources_id,
        path=path,
        stop=stop or asyncio.Event(),
        on_progress=on_progress,
    )


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def stored_in(path: Path) -> list[StoredRollout]:
    return [StoredRollout.from_json(line) for line in path.read_text().splitlines()]


def identity(path: Path) -> tuple[int, int]:
    return path.stat().st_ino, path.stat().st_mtime_ns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rollouts" / "000003.train.jsonl"


def identities(rollouts: Sequence[StoredRollout]) -> list[tuple[int, int, int]]:
    return [(rollout.key.group, rollout.key.member, rollout.attempt) for rollout in rollouts]


async def test_every_member_of_every_group_is_run_with_its_groups_task_and_returned_in_order(path: Path) -> None:
    runner = PlannedRunner()
    rollouts = await collect(runner, path)
    assert identities(rollouts) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    assert sorted(runner.tasks) == ["a", "a", "b", "b"]
    assert stored_in(path) == rollouts


async def test_the_sealed_bytes_do_not_depend_on_what_finished_first(tmp_path: Path) -> None:
    contents = set()
    for number, order in enumerate(itertools.permutations([(0, 0), (0, 1), (1, 0), (1, 1)])):
        path = tmp_path / f"{number}.jsonl"
        await collect(PlannedRunner(finish_order=order), path)
        contents.add(read(path))
    assert len(contents) == 1


async def test_at_most_concurrency_rollouts_run_at_once(path: Path) -> None:
    runner = PlannedRunner()
    await collect(runner, path, concurrency=3, tasks=list("abcdef"))
    assert runner.most_running == 3


async def test_a_rollout_is_retried_until_it_succeeds_or_its_retries_are_used_up(path: Path) -> None:
    failed, timed_out = Outcome.FAILED, Outcome.TIMED_OUT
    plan = {(0, 0, 0): failed, (0, 1, 0): failed, (0, 1, 1): timed_out, (0, 1, 2): Outcome.EMPTY}
    rollouts = await collect(PlannedRunner(plan), path, max_retries=2)
    assert [(r.outcome, r.last) for r in rollouts if (r.key.group, r.key.member) == (0, 0)] == [
        (Outcome.FAILED, False),
        (Outcome.SUCCEEDED, True),
    ]
    assert [(r.outcome, r.last) for r in rollouts if (r.key.group, r.key.member) == (0, 1)] == [
        (Outcome.FAILED, False),
        (Outcome.TIMED_OUT, False),
        (Outcome.EMPTY, True),
    ]


async def test_a_resume_runs_only_what_is_missing_and_goes_on_counting_attempts(path: Path) -> None:
    await collect(PlannedRunner({(0, 1, 0): Outcome.FAILED}), path, max_retries=1)
    whole = read(path)
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 5
    # As a kill leaves it: one rollout between its attempts, one torn, one not begun.
    write(path, lines[0] + lines[1] + lines[3][:20])
    runner = PlannedRunner()
    await collect(runner, path, max_retries=1)
    assert sorted(runner.ran) == [(0, 1, 1), (1, 0, 0), (1, 1, 0)]
    assert read(path) == whole


async def test_what_is_complete_is_not_run_and_not_rewritten(path: Path) -> None:
    await collect(PlannedRunner(), path)
    before = identity(path)
    runner = PlannedRunner()
    assert len(await collect(runner, path)) == 4
    assert runner.ran == []
    assert identity(path) == before


@pytest.mark.parametrize("damage", ["not json", "{}", "twice", "foreign", "changed", "without crc"])
async def test_a_damaged_line_is_refused_by_its_number_and_the_file_left_alone(path: Path, damage: str) -> None:
    await collect(PlannedRunner(), path)
    lines = read(path).decode().splitlines()
    first = StoredRollout.from_json(lines[0])
    foreign = replace(first, key=replace(first.key, group=7)).to_json()
    changed = lines[2].replace('"reward":0.5', '"reward":0.6')
    assert changed != lines[2]
    without_crc = lines[2].partition(',"crc"')[0] + "}"
    damaged = {"twice": lines[0], "foreign": foreign, "changed": changed, "without crc": without_crc}
    lines[2] = damaged.get(damage, damage)
    write(path, "".join(f"{line}\n" for line in lines).encode())
    before = read(path)
    runner = PlannedRunner()
    with pytest.raises(SideFileDamagedError, match=r"000003\.train\.jsonl, line 3: "):
        await collect(runner, path)
    assert runner.ran == []
    assert read(path) == before


async def test_a_batch_begun_with_other_tasks_is_refused_and_the_file_left_alone(path: Path) -> None:
    tasks = [{"question": "a", "answer": 1}, {"question": "b", "answer": 2}]
    await collect(PlannedRunner(), path, tasks=tasks)
    before = read(path)
    runner = PlannedRunner()
    reordered = [{"answer": 1, "question": "a"}, tasks[1]]
    assert len(await collect(runner, path, tasks=reordered)) == 4, "the order of keys makes no other task"
    with pytest.raises(SideFileDamagedError, match=r"000003\.train\.jsonl, line 3: .*delete the file to sample"):
        await collect(runner, path, tasks=[tasks[0], {"question": "b", "answer": 3}])
    assert runner.ran == []
    assert read(path) == before


async def test_the_first_failure_warns_with_its_kind_the_end_with_counts_and_no_log_quotes_a_message(
    path: Path,
) -> None:
    plan = {(group, member, 0): Outcome.FAILED for group in range(2) for member in range(2)}
    del plan[0, 0, 0]
    with structlog.testing.capture_logs() as logged:
        await collect(PlannedRunner(plan), path, concurrency=1)
    first, last = [entry for entry in logged if entry["log_level"] == "warning"]
    assert (first["error"], first["file"]) == ("failed (KeyError at my_agent.py:8)", str(path))
    assert (last["event"], last["failed"]) == ("3 of 4 rollouts did not succeed", 3)
    assert "CANARY-77" not in str(logged)
    assert b"CANARY-77" in read(path)


async def test_each_kind_of_failure_warns_once(path: Path) -> None:
    kinds = [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.EMPTY, Outcome.INVALID]
    plan = {(group, member, 0): kinds[group] for group in range(4) for member in range(2)}
    with structlog.testing.capture_logs() as logged:
        await collect(PlannedRunner(plan), path, tasks=list("abcd"), concurrency=1)
    *each, last = [entry for entry in logged if entry["log_level"] == "warning"]
    assert [entry["error"].partition(" ")[0] for entry in each] == [kind.value for kind in kinds]
    assert last["event"] == "8 of 8 rollouts did not succeed"


async def test_on_failure_stop_ends_with_the_first_error_after_storing_it_and_a_resume_tries_again(path: Path) -> None:
    with pytest.raises(
        StateFailedError, match=r"000003-train-0001-000.*failed \(KeyError at my_agent\.py:8\)"
    ) as stopped:
        await collect(PlannedRunner({(1, 0, 0): Outcome.FAILED}), path, on_failure="stop", concurrency=1)
    assert str(path) in str(stopped.value)
    assert "CANARY-77" not in str(stopped.value)
    stored = stored_in(path)
    assert [(r.outcome, r.last) for r in stored][-1] == (Outcome.FAILED, False)
    runner = PlannedRunner()
    rollouts = await collect(runner, path, on_failure="stop", concurrency=1)
    assert runner.ran == [(1, 0, 1), (1, 1, 0)]
    assert all(rollout.last for rollout in rollouts if rollout.outcome is Outcome.SUCCEEDED)


async def test_once_stopped_nothing_new_begins_and_what_runs_is_stored(path: Path) -> None:
    stop = asyncio.Event()
    runner = PlannedRunner()

    def stop_at_first(progress: CollectProgress) -> None:
        if progress.num_finished:
            stop.set()

    rollouts = await collect(runner, path, stop=stop, concurrency=2, on_progress=stop_at_first)
    assert len(runner.ran) == len(rollouts) == len(stored_in(path)) == 2
    resumed = PlannedRunner()
    await collect(resumed, path)
    assert len(resumed.ran) == 2


async def test_cancelling_abandons_what_runs_and_leaves_whole_lines(path: Path) -> None:
    runner = PlannedRunner(finish_order=[(1, 1), (0, 0)])  # the first waits for the last
    finished = asyncio.Event()

    def at_two(progress: CollectProgress) -> None:
        if progress.num_finished == 2:
            finished.set()

    collecting = asyncio.create_task(collect(runner, path, concurrency=3, on_progress=at_two, tasks=["a", "b", "c"]))
    await finished.wait()
    collecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await collecting
    stored = stored_in(path)
    assert len(stored) >= 2
    assert read(path).endswith(b"\n")


async def test_progress_counts_what_is_finished_and_starts_from_what_was_stored(path: Path) -> None:
    seen: list[CollectProgress] = []
    plan = {(0, 0, 0): Outcome.FAILED}
    await collect(PlannedRunner(plan), path, on_progress=seen.append)
    assert [progress.num_finished for progress in seen] == [0, 1, 2, 3, 4]
    assert (seen[-1].outcomes["failed"], seen[-1].mean_reward, seen[-1].sampled_tokens) == (1, 0.5, 8)
    seen.clear()
    await collect(PlannedRunner(), path, on_progress=seen.append)
    assert [progress.num_finished for progress in seen] == [4]


DYING = """
import asyncio, sys
from pathlib import Path
from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.outcomes import Outcome, Turn

class Runner:
    async def run(self, key, *, attempt, task, resources_id):
        turn = Turn((1, key.group), (5 + key.member, 2), (-0.25, -0.5), key.batch, "stop")
        return AttemptResult(Outcome.SUCCEEDED, 0.5, (turn,), None)

asyncio.run(
    Collector(Runner(), concurrency=3, max_retries=0, on_failure="drop_member", decode=str).collect(
        batch=3, mode="train", tasks=[str(number) for number in range(200)], group_size=2, resources_id="r",
        path=Path(sys.argv[1]), stop=asyncio.Event(),
        on_progress=lambda progress: print(progress.num_finished, file=sys.stderr, flush=True),
    )
)
"""


async def test_a_killed_process_loses_nothing_that_it_had_counted_as_done(tmp_path: Path) -> None:
    tasks = [str(number) for number in range(200)]
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    await collect(PlannedRunner(), whole, tasks=tasks)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DYING, str(cut), stderr=PIPE, stdout=DEVNULL)
    assert process.stderr is not None
    num_finished = 0
    while num_finished < 20:
        line = (await process.stderr.readline()).decode().strip()
        assert line, "the process ended before it was killed"
        num_finished = int(line) if line.isdigit() else 0
    process.kill()
    num_finished = max([num_finished, *(int(line) for line in (await process.stderr.read()).split())])
    await process.wait()
    runner = PlannedRunner()
    await collect(runner, cut, tasks=tasks)
    assert 0 < len(runner.ran) <= 400 - num_finished
    assert read(cut) == read(whole)


@rollout_agent
async def asking_agent(task: str, llm: agl.LLM) -> float:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        reply = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
        return float(reply.choices[0].message.content == "7")


async def test_through_the_gateway_a_stored_rollout_is_never_sampled_again(
    served: Any, client: FakeSamplingClient, path: Path
) -> None:
    runner = served.runner(asking_agent)
    await collect(runner, path, resources_id=served.resources_id)
    whole = read(path)
    assert len(client.calls) == 4
    write(path, b"".join(whole.splitlines(keepends=True)[:3]))
    await collect(runner, path, resources_id=served.resources_id)
    runner.close()
    assert len(client.calls) == 5
    assert read(path) == whole
