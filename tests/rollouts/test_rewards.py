"""Laws of rewards: the last one given counts, the returned number is the last, and nothing that is none becomes 0."""

import asyncio
import json
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import agentlightning as agl
import numpy as np
import openai
import pytest
import torch

from orchestrator.rollouts.attempts import AttemptResult, judge, report_of, returned
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn
from orchestrator.rollouts.rewards import Rewards

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
KEY = RolloutKey(0, "train", 0, 0)
TURN = Turn((1,), (2,), (-0.5,), 0, "stop")


async def ask(llm: Any) -> None:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0) as client:
        await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hello"}])


@pytest.fixture
def run(served: Any) -> Callable[..., Any]:
    """Runs one attempt of an asynchronous agent that first calls the model, then does as ``play`` says."""

    async def run_once(play: Callable[[], Any]) -> AttemptResult:
        async def agent(task: Any, llm: agl.LLM) -> Any:
            await ask(llm)
            value = play()
            return await value if asyncio.iscoroutine(value) else value

        runner = served.runner(rollout_agent(agent))
        result = await runner.run(KEY, attempt=0, task="t", resources_id=served.resources_id)
        runner.close()
        assert isinstance(result, AttemptResult)
        return result

    return run_once


def ended_with(value: Any) -> AttemptResult:
    return judge(report_of(returned(value), Rewards()), (TURN,), 1.0)


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (True, 1.0),
        (0, 0.0),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (torch.tensor(0.5), 0.5),
    ],
)
def test_a_number_of_any_kind_is_a_reward(value: Any, reward: float) -> None:
    result = ended_with(value)
    assert (result.outcome, result.reward) == (Outcome.SUCCEEDED, reward)
    assert result.rewards == ({"primary": reward},)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "no reward"),
        (math.nan, "the reward is nan"),
        (-math.inf, "the reward is -inf"),
        (np.float64("nan"), "the reward is nan"),
        pytest.param(-(10**400), "the reward is -inf", id="huge"),
        (-1e38, "between -1e+30 and 1e+30"),
        ("0.5", "returned a str"),
        (Decimal("0.5"), "returned a Decimal"),
        (1 + 0j, "returned a complex"),
        ([1.0], "returned a list"),
        ({"reward": 1.0}, "returned a dict"),
        (np.array([1.0, 2.0]), "returned a ndarray"),
        ([], "no reward"),
    ],
)
def test_what_is_no_finite_number_is_invalid_and_never_zero(value: Any, told: str) -> None:
    """H11: and is stored as strict JSON."""
    result = ended_with(value)
    assert (result.outcome, result.reward) == (Outcome.INVALID, None)
    assert told in str(result.error)
    stored = StoredRollout(KEY, 0, True, result.outcome, result.reward, (), rewards=result.rewards)
    json.loads(stored.to_json(), parse_constant=pytest.fail)


async def test_rewards_on_the_way_are_kept_in_order_and_only_the_last_counts(run: Any) -> None:
    def play() -> None:
        agl.emit_reward(0.25)
        agl.emit_reward(math.nan)
        agl.emit_reward({"right": 0.5, "short": 3.0}, primary_key="right")

    result = await run(play)
    assert (result.outcome, result.reward) == (Outcome.SUCCEEDED, 0.5)
    assert result.rewards == ({"primary": 0.25}, {"primary": None}, {"right": 0.5, "short": 3.0})
    assert list(result.rewards[-1]) == ["right", "short"]
    stored = StoredRollout(KEY, 0, True, result.outcome, result.reward, result.turns, rewards=result.rewards)
    assert StoredRollout.from_json(stored.to_json()) == stored


async def test_where_the_last_reward_is_not_finite_no_earlier_one_takes_its_place(run: Any) -> None:
    def play() -> None:
        agl.emit_reward(1.0)
        agl.emit_reward(math.inf)

    result = await run(play)
    assert (result.outcome, result.reward) == (Outcome.INVALID, None)


async def test_a_reward_of_several_dimensions_without_a_first_one_fails_the_rollout_saying_so(run: Any) -> None:
    result = await run(lambda: agl.emit_reward({"right": 0.5, "short": 3.0}))
    assert result.outcome is Outcome.FAILED
    assert "primary_key must be provided" in result.error


@pytest.mark.parametrize("place", ["thread", "child task", "gather"])
async def test_rewards_from_an_agents_own_tasks_and_threads_are_its_own(run: Any, place: str) -> None:
    async def emit() -> None:
        agl.emit_reward(0.5)

    async def play() -> None:
        agl.emit_reward(0.25)
        if place == "thread":
            await asyncio.to_thread(agl.emit_reward, 0.5)
        elif place == "child task":
            await asyncio.create_task(emit())
        else:
            await asyncio.gather(emit())

    result = await run(play)
    assert (result.reward, result.rewards) == (0.5, ({"primary": 0.25}, {"primary": 0.5}))


async def test_a_reward_from_a_thread_that_belongs_to_no_rollout_is_an_error_and_not_a_zero(run: Any) -> None:
    def in_pool() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(agl.emit_reward, 0.5).result()

    result = await run(in_pool)
    assert result.outcome is Outcome.FAILED
    assert "contextvars.copy_context().run" in result.error


async def test_what_is_emitted_after_the_attempt_is_over_is_ignored(served: Any) -> None:
    released, emitted = threading.Event(), threading.Event()

    @rollout_agent
    def agent(task: Any, llm: agl.LLM) -> None:
        agl.emit_reward(0.25)
        released.wait(20)
        agl.emit_reward(1.0)
        emitted.set()

    runner = served.runner(agent, timeout_seconds=0.3)
    result = await runner.run(KEY, attempt=0, task="t", resources_id=served.resources_id)
    released.set()
    assert await asyncio.to_thread(emitted.wait, 10)
    assert (result.outcome, result.reward, result.rewards) == (Outcome.TIMED_OUT, None, ())
