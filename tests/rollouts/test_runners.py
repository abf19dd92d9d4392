"""Laws of inline runners: every attempt ends in time, with its own reward and its own outcome."""

import asyncio
import gc
import json
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agentlightning as agl
import openai
import pytest

from orchestrator.errors import ConfigError
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, kind_of_error
from orchestrator.testing import FakeSamplingClient

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
KEY = RolloutKey(0, "train", 0, 0)


def ask(llm: Any, content: str = "hello") -> str:
    with openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        reply = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": content}])
        return str(reply.choices[0].message.content)


async def ask_async(llm: Any, content: str = "hello") -> str:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        reply = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": content}])
        return str(reply.choices[0].message.content)


@pytest.fixture
def run(served: Any) -> Callable[..., Any]:
    async def run_once(agent: Any, *, task: Any = "t", key: RolloutKey = KEY, timeout: float = 20.0) -> AttemptResult:
        runner = served.runner(agent, timeout_seconds=timeout)
        result = await runner.run(key, attempt=0, task=task, resources_id=served.resources_id)
        runner.close()
        assert isinstance(result, AttemptResult)
        return result

    return run_once


@rollout_agent
def sync_agent(task: Any, llm: agl.LLM) -> float:
    return float(ask(llm) == "7")


@rollout_agent
async def async_agent(task: Any, llm: agl.LLM) -> float:
    return float(await ask_async(llm) == "7")


@rollout_agent
async def emitting_agent(task: Any, llm: agl.LLM, rollout: agl.Rollout) -> None:
    await ask_async(llm)
    agl.emit_reward(0.25)
    agl.emit_reward(0.5)


class ClassAgent(agl.LitAgent[Any]):  # type: ignore[misc]  # Any to mypy
    """Answers differently in training and in evaluation."""

    def training_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return self.play(resources, rollout)

    def validation_rollout(self, task: Any, resources: Any, rollout: Any) -> float:
        return -self.play(resources, rollout)

    def play(self, resources: Any, rollout: Any) -> float:
        llm = resources["main_llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        return float(ask(agl.LLM(endpoint=url, model=llm.model, api_key=llm.api_key)) == "7")


@pytest.mark.parametrize(
    ("agent", "reward"), [(sync_agent, 1.0), (async_agent, 1.0), (emitting_agent, 0.5), (ClassAgent(), 1.0)]
)
async def test_every_kind_of_agent_succeeds_with_its_reward_and_its_turn(run: Any, agent: Any, reward: float) -> None:
    result = await run(agent)
    assert (result.outcome, result.reward, result.error) == (Outcome.SUCCEEDED, reward, None)
    assert len(result.turns) == 1


async def test_an_evaluation_runs_the_agents_validation(run: Any) -> None:
    result = await run(ClassAgent(), key=RolloutKey(0, "eval", 0, 0))
    assert result.reward == -1.0


async def test_the_returned_number_wins_over_the_emitted_one(run: Any) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> bool:
        ask(llm)
        agl.emit_reward(0.1)
        return True

    assert (await run(agent)).reward == 1.0


@pytest.mark.parametrize("returned", [float("nan"), float("inf"), None, "good", []])
async def test_a_reward_that_is_no_finite_number_is_invalid_and_not_zero(run: Any, returned: Any) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> Any:
        ask(llm)
        return returned

    result = await run(agent)
    assert (result.outcome, result.reward) == (Outcome.INVALID, None)
    assert "reward" in result.error or "returned a str" in result.error


async def test_a_turn_without_logprobs_makes_the_rollout_invalid(run: Any, served: Any, saying: Any) -> None:
    await served.publish(saying("7", logprob=float("nan")))
    result = await run(sync_agent)
    assert (result.outcome, result.reward) == (Outcome.INVALID, 1.0)
    assert "1 of 1 turns" in result.error
    line = StoredRollout(KEY, 0, True, result.outcome, result.reward, result.turns, result.error).to_json()
    assert "NaN" not in line
    assert [turn.valid for turn in StoredRollout.from_json(line).turns] == [False], "it is stored, and read as invalid"


async def test_an_agent_that_never_called_the_model_is_empty_and_told_why(run: Any) -> None:
    """H26."""

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        return 1.0

    result = await run(agent)
    assert result.outcome is Outcome.EMPTY
    assert "base_url=llm.endpoint" in result.error


@pytest.mark.parametrize("kind", [ValueError, StopIteration, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_agent_that_raises_has_failed_with_its_error(
    run: Any, kind: type[BaseException], is_async: bool
) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        ask(llm)
        raise kind("on purpose")

    @rollout_agent
    async def agent_async(task: Any, llm: agl.LLM) -> float:
        await ask_async(llm)
        raise kind("on purpose")

    result = await run(agent_async if is_async else agent)
    assert (result.outcome, result.reward, len(result.turns)) == (Outcome.FAILED, None, 1)
    assert kind.__name__ in result.error
    assert "test_runners.py" in result.error
    assert (await run(async_agent)).outcome is Outcome.SUCCEEDED


async def test_an_error_names_no_address_that_differs_between_runs(run: Any, served: Any) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        raise ConnectionError(f"no answer from {llm.endpoint}/chat, {object()!r}")

    first, second = (await run(agent)).error, (await run(agent)).error
    assert first == second
    assert "127.0.0.1" not in first


async def test_an_error_begins_with_its_type_and_the_agents_own_line(run: Any) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        return float(json.loads("no JSON")["reward"])

    result = await run(agent)
    stored = StoredRollout(KEY, 0, True, result.outcome, None, (), result.error)
    assert re.fullmatch(r"failed \(JSONDecodeError at test_runners\.py:\d+\)", kind_of_error(stored))


async def test_an_error_holds_no_value_of_a_secret_variable(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "CANARY-secret-77")

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        cause = ConnectionError(f"refused CANARY-secret-77, {llm.api_key}")
        raise RuntimeError("x" * 495 + os.environ["SEARCH_API_KEY"]) from cause

    result = await run(agent)
    assert "refused [redacted], [redacted]" in result.traceback
    assert "CANARY" not in result.error + result.traceback


async def test_a_sleeping_async_agent_times_out_and_is_cancelled(run: Any) -> None:
    cancelled = threading.Event()

    @rollout_agent
    async def agent(task: Any, llm: agl.LLM) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 1.0

    began = time.monotonic()
    result = await run(agent, timeout=0.3)
    assert time.monotonic() - began < 3
    assert (result.outcome, result.reward) == (Outcome.TIMED_OUT, None)
    assert "0.3 s" in result.error
    assert await asyncio.to_thread(cancelled.wait, 5)


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_agent_that_blocks_times_out_and_the_event_loop_of_the_run_stays_free(
    run: Any, is_async: bool
) -> None:
    released = threading.Event()

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        released.wait(20)
        return 1.0

    @rollout_agent
    async def agent_async(task: Any, llm: agl.LLM) -> float:
        released.wait(20)
        return 1.0

    began = time.monotonic()
    result = await run(agent_async if is_async else agent, timeout=0.3)
    assert time.monotonic() - began < 3
    assert result.outcome is Outcome.TIMED_OUT
    released.set()


async def test_agents_after_one_that_blocks_its_loop_are_not_lost(served: Any) -> None:
    released = threading.Event()

    @rollout_agent
    async def agent(task: Any, llm: agl.LLM) -> float:
        if task == "block":
            released.wait(20)
        return float(await ask_async(llm) == "7")

    runner = served.runner(agent, timeout_seconds=2.0)
    results = [
        await runner.run(RolloutKey(0, "train", 0, member), attempt=0, task=task, resources_id=served.resources_id)
        for member, task in enumerate(["block", "play"])
    ]
    released.set()
    runner.close()
    assert [result.outcome for result in results] == [Outcome.TIMED_OUT, Outcome.SUCCEEDED]


async def test_an_abandoned_agents_calls_are_refused_and_its_rewards_ignored(
    run: Any, client: FakeSamplingClient
) -> None:
    released, seen = threading.Event(), []
    ended = threading.Event()

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        ask(llm)
        agl.emit_reward(0.5)
        released.wait(20)
        try:
            ask(llm)
        except openai.NotFoundError as error:
            seen.append(error.status_code)
        agl.emit_reward(1.0)
        ended.set()
        return 1.0

    result = await run(agent, timeout=1.5)
    released.set()
    assert await asyncio.to_thread(ended.wait, 10)
    assert (result.outcome, result.reward, len(result.turns)) == (Outcome.TIMED_OUT, None, 1)
    assert seen == [404]
    assert len(client.calls) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_rewards_of_fifty_concurrent_rollouts_never_mix(served: Any, is_async: bool) -> None:
    gate = threading.Barrier(50, timeout=20)
    everyone, arrived = asyncio.Event(), 0

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> None:
        gate.wait()
        agl.emit_reward(-1.0)
        gate.wait()
        agl.emit_reward(float(task))

    @rollout_agent
    async def agent_async(task: Any, llm: agl.LLM) -> None:
        nonlocal arrived
        agl.emit_reward(-1.0)
        arrived += 1
        if arrived == 50:
            everyone.set()
        await everyone.wait()
        await asyncio.create_task(emit(float(task)))

    async def emit(reward: float) -> None:
        agl.emit_reward(reward)

    runner = served.runner(agent_async if is_async else agent)
    results = await asyncio.gather(
        *(
            runner.run(RolloutKey(0, "train", 0, member), attempt=0, task=member, resources_id=served.resources_id)
            for member in range(50)
        )
    )
    runner.close()
    assert [result.reward for result in results] == [float(member) for member in range(50)]


async def test_an_agent_may_change_its_task_without_changing_that_of_others(run: Any) -> None:
    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        ask(llm)
        task["steps"].append(1)
        return float(len(task["steps"]))

    task: dict[str, list[int]] = {"steps": []}
    assert [(await run(agent, task=task)).reward for _ in range(2)] == [1.0, 1.0]
    assert task == {"steps": []}


async def test_the_store_shows_how_the_attempt_ended(run: Any, served: Any) -> None:
    await run(emitting_agent, key=RolloutKey(9, "train", 0, 0))
    (shown,) = [
        rollout
        for rollout in await served.gateway.store.query_rollouts()
        if (rollout.metadata or {}).get("rollout_key") == str(RolloutKey(9, "train", 0, 0))
    ]
    assert (shown.status, shown.mode) == ("succeeded", "train")
    assert agl.find_final_reward(await served.gateway.store.query_spans(shown.rollout_id)) == 0.5


AGENTS = """
import agentlightning as agl

@agl.rollout
def solve(task, llm):
    return 1.0

class Solver(agl.LitAgent):
    pass

def plain(task, llm):
    return 1.0
"""


def test_an_agent_is_found_by_module_and_attribute_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents_of_the_test.py").write_text(AGENTS)
    (tmp_path / "broken_agent_of_the_test.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_agent("agents_of_the_test:solve")(None, None) == 1.0
    assert type(load_agent("agents_of_the_test:Solver")).__name__ == "Solver"
    for name, problem in {
        "agents_of_the_test:plain": "@agl.rollout",
        "agents_of_the_test:missing": "missing",
        "no_such_module_of_the_test:solve": "no_such_module_of_the_test",
        "broken_agent_of_the_test:solve": "no licence",
        "agents_of_the_test": "module:attribute",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            load_agent(name)


def num_descriptors() -> int:
    """Those that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_event_loop_that_a_synchronous_agent_leaves_open_is_closed_with_its_thread(run: Any) -> None:
    """As ``Runner.run_sync`` of the OpenAI Agents SDK leaves one; three descriptors each."""

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> float:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return float(loop.run_until_complete(ask_async(llm)) == "7")

    await run(agent)
    gc.disable()
    try:
        before = num_descriptors()
        outcomes = [(await run(agent)).outcome for _ in range(8)]
        opened = num_descriptors() - before
    finally:
        gc.enable()
    assert outcomes == [Outcome.SUCCEEDED] * 8
    assert opened < 8
