"""Laws of the interfaces: one conversation, whichever way it is told, is the same tokens in and out."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from rollouts.calls import USER, Attempt

from orchestrator.rollouts.capture import Call
from orchestrator.rollouts.gateway.messages import read_messages
from orchestrator.rollouts.gateway.responses import read_responses
from orchestrator.rollouts.outcomes import Turn
from orchestrator.rollouts.provider import Completion
from orchestrator.rollouts.rendering import Reply
from orchestrator.testing import FakeSamplingClient

CONVERSATION = [
    {"role": "user", "content": "guess"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "higher"},
]
CALL = Call("ro-0", "at-0", (1,), asked="{}", repeat=0, number=0, seed=0)
TURN = Turn((1,), (2, 3), (-0.5, -0.5), 0, "stop")


@pytest.fixture
def agent(served: Any, attempt: Attempt) -> openai.AsyncOpenAI:
    """What an agent makes of its resources."""
    return openai.AsyncOpenAI(
        base_url=f"{served.gateway.address}{attempt.path}", api_key=served.gateway.key, max_retries=0
    )


def sse(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream."""
    assert response.status_code == 200, response.text
    return events_of(response.text)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events in the body of a stream, each named after its type."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_the_same_conversation_is_the_same_prompt_through_every_interface(
    attempt: Attempt, client: FakeSamplingClient
) -> None:
    system = {"role": "system", "content": "be brief"}
    asked: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9}
    answers = [
        await attempt.ask(messages=[system, *CONVERSATION], max_tokens=9, stop="x", **asked),
        await attempt.post(
            "messages", system="be brief", messages=CONVERSATION, max_tokens=9, stop_sequences=["x"], **asked
        ),
        await attempt.post(
            "responses", instructions="be brief", input=CONVERSATION, max_output_tokens=9, stop="x", **asked
        ),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200], [answer.text for answer in answers]
    prompts, params = zip(*client.calls, strict=True)
    assert len(set(prompts)) == 1
    assert len({param.model_copy(update={"seed": 0}).model_dump_json() for param in params}) == 1
    assert (params[0].temperature, params[0].top_p, params[0].max_tokens) == (0.5, 0.9, 9)
    texts = [
        answers[0].json()["choices"][0]["message"]["content"],
        answers[1].json()["content"][0]["text"],
        answers[2].json()["output"][0]["content"][0]["text"],
    ]
    assert texts == ["7", "7", "7"]
    assert len({(turn.prompt_tokens, turn.sampled_tokens) for turn in attempt.turns()}) == 1


async def test_chat_completions_through_openais_client(agent: openai.AsyncOpenAI, attempt: Attempt) -> None:
    reply = await agent.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}],
        max_completion_tokens=4,
        user="someone",
        metadata={"a": "b"},
        store=False,
    )
    assert (reply.object, reply.model, reply.choices[0].message.content) == ("chat.completion", "policy", "7")
    (turn,) = attempt.turns()
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(turn.prompt_tokens), 2)
    assert [model.id async for model in agent.models.list()] == ["policy"]


async def test_responses_through_openais_client(agent: openai.AsyncOpenAI, attempt: Attempt) -> None:
    reply = await agent.responses.create(model="policy", input="hello", store=False)
    assert (reply.status, reply.output_text) == ("completed", "7")
    (turn,) = attempt.turns()
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (len(turn.prompt_tokens), 2)


async def test_responses_are_streamed_to_openais_client(agent: openai.AsyncOpenAI, attempt: Attempt) -> None:
    async with agent.responses.stream(model="policy", input="hello") as stream:
        kinds = [event.type async for event in stream]
        reply = await stream.get_final_response()
    assert reply.output_text == "7"
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in kinds
    raw = sse(await attempt.post("responses", input="hello", stream=True))
    assert [event["sequence_number"] for event in raw] == list(range(len(raw)))
    assert len(attempt.turns()) == 2


async def test_a_response_that_was_cut_is_incomplete(
    agent: openai.AsyncOpenAI, served: Any, saying: Callable[..., Any]
) -> None:
    await served.publish(saying("a long reply"))
    reply = await agent.responses.create(model="policy", input="hello", max_output_tokens=6)
    assert (reply.status, reply.output_text) == ("incomplete", "a long")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"


async def test_messages_in_anthropics_shape_with_anthropics_header(attempt: Attempt, http: httpx.AsyncClient) -> None:
    key = http.headers.pop("authorization").removeprefix("Bearer ")
    http.headers.update({"x-api-key": key, "anthropic-version": "2023-06-01"})
    blocks = [{"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]}]
    reply = (await attempt.post("messages", messages=blocks, max_tokens=4, metadata={"user_id": "u"})).json()
    assert (reply["type"], reply["role"], reply["model"]) == ("message", "assistant", "policy")
    assert reply["content"] == [{"type": "text", "text": "7"}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("end_turn", None)
    (turn,) = attempt.turns()
    assert (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"]) == (len(turn.prompt_tokens), 2)


async def test_messages_are_streamed_in_anthropics_events(
    attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    await served.publish(saying("a long reply"))
    events = sse(await attempt.post("messages", messages=USER, max_tokens=6, stream=True))
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["content"] == []
    assert events[2]["delta"] == {"type": "text_delta", "text": "a long"}
    assert events[4]["delta"]["stop_reason"] == "max_tokens"
    assert events[4]["usage"]["output_tokens"] == 6


def test_what_was_thought_comes_back_as_it_was_through_the_translated_interfaces() -> None:
    """An agent sends its earlier turns back; a prompt without their thoughts would not extend what was sampled."""
    completion = Completion(CALL, (Reply(TURN, "four", thinking="it is even"),))
    first = read_messages({"model": "policy", "messages": USER, "max_tokens": 4})
    content = json.loads(bytes(first.respond(completion).body))["content"]
    later = read_messages(
        {"model": "policy", "messages": [*USER, {"role": "assistant", "content": content}, *USER], "max_tokens": 4}
    )
    items = json.loads(bytes(read_responses({"model": "policy", "input": USER}).respond(completion).body))["output"]
    assert [item["type"] for item in items] == ["reasoning", "message"]
    later_response = read_responses({"model": "policy", "input": [*USER, *items, *USER]})
    for messages in (later.messages, later_response.messages):
        assert [message["role"] for message in messages] == ["user", "assistant", "user"]
        said = messages[1]["content"]
        assert (said if isinstance(said, str) else "".join(part["text"] for part in said)) == "four"
        assert messages[1]["reasoning_content"] == "it is even"


def test_thoughts_are_streamed_in_openais_and_anthropics_events() -> None:
    completion = Completion(CALL, (Reply(TURN, "four", thinking="it is even"),))
    streamed = {"model": "policy", "stream": True}
    responses = read_responses({**streamed, "input": USER}).respond(completion)
    messages = read_messages({**streamed, "messages": USER, "max_tokens": 4}).respond(completion)
    of_responses, of_messages = (events_of(bytes(response.body).decode()) for response in (responses, messages))
    deltas = [event["delta"] for event in of_responses if event["type"] == "response.reasoning_text.delta"]
    assert deltas == ["it is even"]
    deltas = [event["delta"] for event in of_messages if event["type"] == "content_block_delta"]
    assert deltas == [{"type": "thinking_delta", "thinking": "it is even"}, {"type": "text_delta", "text": "four"}]
