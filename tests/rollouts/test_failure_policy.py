"""Laws of failing agents: what one raises, returns late or leaves behind is told and bounded, and costs no other."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import agentlightning as agl
import openai
import pytest
import structlog

from orchestrator.errors import StateFailedError
from orchestrator.rollouts import threads
from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.failures import Failure, describe
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, kind_of_error
from orchestrator.testing import FakeSamplingClient

rollout_agent: Callable[[Callable[..., Any]], Any] = agl.rollout
KEY = RolloutKey(0, "train", 0, 0)
PROMPT = "CANARY-77"


def failure_of(play: Callable[[], Any]) -> Failure:
    try:
        play()
    except BaseException as error:
        return describe(error)
    raise AssertionError("it was to raise")


def stored(failure: Failure) -> StoredRollout:
    rollout = StoredRollout(KEY, 0, True, Outcome.FAILED, None, (), failure.error, traceback=failure.traceback)
    assert StoredRollout.from_json(rollout.to_json()) == rollout
    return rollout


def test_the_traceback_shows_the_agents_own_frames_and_every_cause() -> None:
    def look_up() -> None:
        raise KeyError(PROMPT)

    def solve() -> None:
        try:
            look_up()
        except KeyError as error:
            error.add_note("while thinking")
            raise ValueError("no plan") from error

    failure = failure_of(solve)
    assert failure.error.startswith("ValueError at test_failure_policy.py:")
    assert failure.traceback.index(f"KeyError: '{PROMPT}'\nwhile thinking") < failure.traceback.index("direct cause")
    assert failure.traceback.index("direct cause") < failure.traceback.index("ValueError: no plan")
    assert "in look_up\n    raise KeyError(PROMPT)" in failure.traceback
    told = kind_of_error(stored(failure))
    assert told.startswith("failed (ValueError at test_failure_policy.py:")
    assert PROMPT not in told


def test_every_member_of_a_group_is_told_up_to_a_bound() -> None:
    def solve() -> None:
        members = [ValueError(f"member {number}") for number in range(20)]
        raise ExceptionGroup("several", [KeyError("first"), ExceptionGroup("inner", members)])

    failure = failure_of(solve)
    assert failure.error.startswith("ExceptionGroup at test_failure_policy.py:")
    assert "  | 1 of 2" in failure.traceback
    assert "  |   | ValueError: member 0" in failure.traceback
    assert "  |   | and 15 more" in failure.traceback


class Unspeakable(Exception):  # noqa: N818 - what it is named after is what it does
    """Has no message, no pickle and no end."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __str__(self) -> str:
        raise SystemExit("even this")


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise RecursionError("too deep")


def endless() -> None:
    error: BaseException = ValueError("link 0")
    for number in range(1, 100):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    raise error


def in_a_circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def speak(message: str) -> Callable[[], None]:
    def solve() -> None:
        raise RuntimeError(message)

    return solve


def refuse_to_speak() -> None:
    raise Unspeakable


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (refuse_to_speak, "its message cannot be told: SystemExit"),
        (speak("x" * 10_000_000), "x..."),
        (speak("\ud800 half a character"), "? half a character"),
        (speak("two\nlines"), "two\nlines"),
        (lambda: deep(500), "... 4"),
        (endless, "link 99"),
        (in_a_circle, "ValueError: second"),
    ],
    ids=["unspeakable", "huge", "surrogate", "lines", "deep", "endless", "circle"],
)
def test_whatever_is_raised_is_told_within_bounds_and_can_be_stored(play: Callable[[], None], told: str) -> None:
    failure = failure_of(play)
    assert told in failure.error + failure.traceback
    assert len(failure.error) < 700
    assert len(failure.traceback) < 30_000
    stored(failure)


async def ask(llm: Any, **options: Any) -> str:
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, **options) as client:
        reply = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hello"}])
        return str(reply.choices[0].message.content)


@pytest.fixture
def play_all(served: Any) -> Callable[..., Any]:
    """Runs an agent on several tasks at once."""

    async def run(agent: Any, tasks: list[Any]) -> list[AttemptResult]:
        runner = served.runner(rollout_agent(agent))
        results = await asyncio.gather(
            *(
                runner.run(RolloutKey(0, "train", 0, member), attempt=0, task=task, resources_id=served.resources_id)
                for member, task in enumerate(tasks)
            )
        )
        runner.close()
        return list(results)

    return run


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
async def test_an_agents_exit_or_cancellation_is_its_own_failure(play_all: Any, kind: type[BaseException]) -> None:
    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm)
        if task == "raise":
            raise kind("on purpose")
        return 1.0

    failed, other = await play_all(agent, ["raise", "play"])
    assert (failed.outcome, other.outcome) == (Outcome.FAILED, Outcome.SUCCEEDED)
    assert f"{kind.__name__}: on purpose" in failed.traceback


@pytest.mark.parametrize("awaited", [True, False])
async def test_an_exit_in_a_task_that_an_agent_made_ends_no_other_agent(play_all: Any, awaited: bool) -> None:
    """asyncio lets it out of the loop that all agents share, which then has to go on."""
    waiting, begun = asyncio.Event(), threading.Event()

    async def leave() -> None:
        raise SystemExit("from a child")

    async def agent(task: str, llm: agl.LLM) -> float:
        if task == "wait":
            begun.set()
            await waiting.wait()
        else:
            await asyncio.to_thread(begun.wait, 10)
            child = asyncio.create_task(leave())
            await asyncio.sleep(0)
            waiting.set()
            if awaited:
                await child
        return float(await ask(llm) == "7")

    other, leaving = await play_all(agent, ["wait", "leave"])
    assert other.outcome is Outcome.SUCCEEDED
    assert leaving.outcome is (Outcome.FAILED if awaited else Outcome.SUCCEEDED)


async def test_an_agent_that_swallows_its_cancellation_is_timed_out_all_the_same(served: Any) -> None:
    """Its late calls are refused, its late reward and return value ignored."""
    refused, ended = [], threading.Event()

    async def agent(task: str, llm: agl.LLM) -> float:
        await ask(llm)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with contextlib.suppress(openai.NotFoundError):
                await ask(llm)
                refused.append(False)
            agl.emit_reward(1.0)
            ended.set()
        return 1.0

    runner = served.runner(rollout_agent(agent), timeout_seconds=1.0)
    result = await runner.run(KEY, attempt=0, task="t", resources_id=served.resources_id)
    assert (result.outcome, result.reward, len(result.turns)) == (Outcome.TIMED_OUT, None, 1)
    assert await asyncio.to_thread(ended.wait, 10)
    runner.close()
    assert refused == []
    assert result.rewards == ()


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("is_async", [True, False])
async def test_threads_that_outlive_their_attempts_are_told_of_and_then_stop_the_run(
    served: Any, released: threading.Event, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(threads, "FIRST_WARNING", 2)
    monkeypatch.setattr(threads, "MAX_LEFT_BEHIND", 4)
    monkeypatch.setattr(threads, "LAST_WAIT_SECONDS", 0.1)

    def agent(task: str, llm: agl.LLM) -> float:
        return float(released.wait(20))

    async def agent_async(task: str, llm: agl.LLM) -> float:
        return float(await asyncio.to_thread(released.wait, 20))

    runner = served.runner(rollout_agent(agent_async if is_async else agent), timeout_seconds=0.1)

    async def play(member: int) -> AttemptResult:
        key = RolloutKey(0, "train", 0, member)
        result = await runner.run(key, attempt=0, task="t", resources_id=served.resources_id)
        assert isinstance(result, AttemptResult)
        return result

    with structlog.testing.capture_logs() as logged:
        assert [(await play(member)).outcome for member in range(4)] == [Outcome.TIMED_OUT] * 4
    assert [entry["event"].split(" threads")[0] for entry in logged if "threads of agents" in entry["event"]] == [
        "2",
        "4",
    ]
    with pytest.raises(StateFailedError, match=r"4 threads of agents .* goes on in a new process"):
        await play(4)
    released.set()
    monkeypatch.setattr(threads, "LAST_WAIT_SECONDS", 10.0)
    assert (await play(5)).outcome is Outcome.EMPTY
    runner.close()


async def test_a_reply_that_its_client_did_not_wait_for_is_not_trained_on(
    served: Any, play_all: Any, client: FakeSamplingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK gives up the first call and makes it again: the agent saw one reply, so one turn is kept."""
    held = asyncio.Event()
    sample, seeds = client.sample_async, []

    async def first_one_late(prompt: Any, num_samples: int, params: Any) -> Any:
        seeds.append(params.seed)
        if len(seeds) == 1:
            await held.wait()
        elif len(seeds) == 2:
            held.set()
        return await sample(prompt, num_samples, params)

    monkeypatch.setattr(client, "sample_async", first_one_late)

    async def agent(task: str, llm: agl.LLM) -> float:
        return float(await ask(llm, timeout=0.5, max_retries=1) == "7")

    (result,) = await play_all(agent, ["t"])
    assert (result.outcome, len(seeds), len(result.turns)) == (Outcome.SUCCEEDED, 2, 1)
    assert seeds[0] == seeds[1], "so that the reply is the one that it would have got"
