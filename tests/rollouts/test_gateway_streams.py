"""Laws of a streamed reply: the same turn as a whole one, in OpenAI's chunks."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from rollouts.calls import USER, Attempt

from orchestrator.testing import FakeSamplingClient


@pytest.fixture
def agent(served: Any, attempt: Attempt) -> openai.AsyncOpenAI:
    """What an agent makes of its resources."""
    return openai.AsyncOpenAI(base_url=f"{served.gateway.address}{attempt.path}", api_key=served.gateway.key)


async def test_a_stream_tells_the_reply_that_was_captured(
    agent: openai.AsyncOpenAI, attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    await served.publish(saying("forty two"))
    stream = await agent.chat.completions.create(model="policy", messages=USER, stream=True)
    chunks = [chunk async for chunk in stream]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    assert deltas[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in deltas) == "forty two"
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)
    (turn,) = attempt.turns()
    assert len(turn.sampled_tokens) == len("forty two") + 1


async def test_usage_is_streamed_last_when_it_is_asked_for(attempt: Attempt) -> None:
    response = await attempt.ask(stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, done = response.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    (turn,) = attempt.turns()
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": len(turn.prompt_tokens),
        "completion_tokens": 2,
        "total_tokens": len(turn.prompt_tokens) + 2,
    }


async def test_several_samples_are_told_apart_by_their_index(agent: openai.AsyncOpenAI, attempt: Attempt) -> None:
    stream = await agent.chat.completions.create(model="policy", messages=USER, n=2, stream=True)
    contents = ["", ""]
    async for chunk in stream:
        for choice in chunk.choices:
            contents[choice.index] += choice.delta.content or ""
    assert contents == ["7", "7"]
    assert len(attempt.turns()) == 2


async def test_what_cannot_be_streamed_is_refused_with_a_status_rather_than_in_the_stream(
    attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    failing: FakeSamplingClient = saying("7", fail_calls=frozenset({0}))
    await served.publish(failing)
    answers = [
        await attempt.ask(stream=True),
        await attempt.ask(stream=True, temperature=-1),
        await attempt.ask(stream="yes"),
        await attempt.ask(stream=True, stream_options=7),
    ]
    assert [answer.status_code for answer in answers] == [500, 400, 400, 400]
    assert len(failing.calls) == 1
    assert attempt.turns() == ()
