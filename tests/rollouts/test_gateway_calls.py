"""Laws of a call through either gateway: what the agent asks is what is sampled, captured and answered."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest
from rollouts.calls import USER, Attempt, text_of

from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.testing import FakeSamplingClient

pytestmark = pytest.mark.parametrize("gateway_process", ["slim", "llm_proxy"], indirect=True)


async def test_sampling_parameters_reach_the_sampler_as_asked(attempt: Attempt, client: FakeSamplingClient) -> None:
    """H14."""
    response = await attempt.ask(temperature=0, top_p=1, max_tokens=8)
    assert text_of(response) == "7"
    params = client.calls[0][1]
    assert (params.temperature, params.top_p, params.max_tokens) == (0.0, 1.0, 8)


async def test_a_boolean_is_no_temperature(attempt: Attempt, client: FakeSamplingClient) -> None:
    """H14."""
    response = await attempt.ask(temperature=True)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "temperature: expected a number of at least 0, found True" in error["message"]
    assert client.calls == []


async def test_refusals_do_not_harm_the_next_call(attempt: Attempt) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    refusals = [await attempt.ask(tools=tools, tool_choice="required") for _ in range(5)]
    refusals.append(await attempt.ask(functions=[tools[0]["function"]]))
    assert {response.status_code for response in refusals} == {400}
    assert "tool_choice" in refusals[0].json()["error"]["message"]
    assert "functions" in refusals[-1].json()["error"]["message"]
    assert text_of(await attempt.ask()) == "7"


async def test_a_tool_is_called_and_its_result_told(
    attempt: Attempt, served: Any, saying: Callable[..., Any], decode: Callable[[Iterable[int]], str]
) -> None:
    await served.publish(saying('Hm.\n<tool_call>\n{"name":"f","arguments":{"x": 1}}\n</tool_call>'))
    tools = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": True}}]
    asked: dict[str, Any] = {"tools": tools, "tool_choice": "auto", "parallel_tool_calls": True, "max_tokens": 99}
    first = (await attempt.ask(**asked)).json()["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    (call,) = first["message"]["tool_calls"]
    assert (call["type"], call["function"]) == ("function", {"name": "f", "arguments": '{"x": 1}'})
    assert first["message"]["content"] == "Hm."
    result = {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": "42"}]}
    response = await attempt.ask(**asked, messages=[*USER, first["message"], result])
    assert response.status_code == 200, response.text
    calling, told = attempt.turns()
    so_far = calling.prompt_tokens + calling.sampled_tokens
    assert told.prompt_tokens[: len(so_far)] == so_far
    assert "<tool_response>\n42\n</tool_response>" in decode(told.prompt_tokens)


async def test_a_turn_is_captured_token_for_token(
    attempt: Attempt, client: FakeSamplingClient, decode: Callable[[Iterable[int]], str]
) -> None:
    response = await attempt.ask()
    (turn,) = attempt.turns()
    assert decode(turn.prompt_tokens) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert decode(turn.sampled_tokens) == "7<|im_end|>"
    assert turn.logprobs == (-0.5, -0.5)
    assert (turn.policy_version, turn.stop_reason) == (0, "stop")
    assert turn.prompt_tokens == client.calls[0][0]
    usage = response.json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(turn.prompt_tokens), 2)


async def test_an_evaluation_call_is_sampled_as_evaluation_and_a_training_call_as_training(
    served: Any, http: httpx.AsyncClient, client: FakeSamplingClient
) -> None:
    await Attempt(served, http, RolloutKey(0, "eval", 0, 0)).ask()
    await Attempt(served, http, RolloutKey(0, "train", 0, 0)).ask()
    assert [params.temperature for _, params in client.calls] == [0.0, 1.0]


async def test_the_seed_is_derived_unless_it_is_asked_for(attempt: Attempt, client: FakeSamplingClient) -> None:
    for seed in (None, None, 5):
        await attempt.ask(seed=seed)
    first, second, asked = (params.seed for _, params in client.calls)
    assert first is not None
    assert first != second
    assert asked == 5


async def test_a_reply_is_cut_at_the_agents_stop_and_so_is_what_is_trained(
    attempt: Attempt, served: Any, saying: Callable[..., Any], decode: Callable[[Iterable[int]], str]
) -> None:
    await served.publish(saying("one stop two"))
    response = await attempt.ask(stop=["never", " st"])
    assert text_of(response) == "one"
    (turn,) = attempt.turns()
    assert decode(turn.sampled_tokens) == "one st"
    assert len(turn.logprobs) == 6
    assert response.json()["choices"][0]["finish_reason"] == "stop"


async def test_several_samples_are_several_turns_of_one_prompt(attempt: Attempt) -> None:
    response = await attempt.ask(n=3)
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2]
    turns = attempt.turns()
    assert len(turns) == 3
    assert len({turn.prompt_tokens for turn in turns}) == 1


@pytest.mark.parametrize(
    ("said", "end", "reason"),
    [
        ("a long reply that is cut", True, "length"),
        ("no end", False, "stop"),
        ("<tool_call>{]</tool_call>", False, "stop"),
        ("", True, "stop"),
    ],
)
async def test_a_malformed_reply_is_plain_text(
    attempt: Attempt, served: Any, saying: Callable[..., Any], said: str, end: bool, reason: str
) -> None:
    await served.publish(saying(said, end=end))
    response = await attempt.ask(max_tokens=12 if reason == "length" else 64)
    assert text_of(response) == (said[:12] if reason == "length" else said)
    assert response.json()["choices"][0]["finish_reason"] == reason


async def test_logprobs_are_told_where_they_are_asked_for(attempt: Attempt) -> None:
    told = (await attempt.ask(logprobs=True)).json()["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["logprob"]) for entry in told] == [("7", -0.5), ("<|im_end|>", -0.5)]
    (turn,) = attempt.turns()
    assert turn.logprobs == (-0.5, -0.5)


async def test_a_reply_tells_its_tokens_and_its_policy_to_the_adapters_only(
    attempt: Attempt, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = (await attempt.ask()).json()
    monkeypatch.setattr(served.provider, "_reveal", True)
    told = (await attempt.ask()).json()
    several = await attempt.ask(n=2)
    turn, _ = attempt.turns()
    assert not {"prompt_token_ids", "system_fingerprint"} & {name for name, value in plain.items() if value}
    assert not {"token_ids", "logprobs"} & {name for name, value in plain["choices"][0].items() if value}
    assert told["prompt_token_ids"] == list(turn.prompt_tokens)
    assert told["choices"][0]["token_ids"] == list(turn.sampled_tokens)
    assert [entry["logprob"] for entry in told["choices"][0]["logprobs"]["content"]] == [-0.5, -0.5]
    assert told["system_fingerprint"] == "policy-version-0"
    assert several.status_code == 400, "a span holds one sample"


async def test_a_streaming_client_is_served(attempt: Attempt) -> None:
    response = await attempt.ask(stream=True)
    assert response.status_code == 200
    *chunks, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.strip()]
    choices = [choice for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "7"
    assert choices[-1]["finish_reason"] == "stop"
    assert done == "[DONE]"


async def test_a_call_of_no_rollout_is_refused(attempt: Attempt, http: httpx.AsyncClient, client: Any) -> None:
    unknown = await attempt.ask(ids=("ro-x", "at-x"))
    without = await http.post("/v1/chat/completions", json={"model": "policy", "messages": USER})
    attempt.turns()
    over = await attempt.ask()
    assert [response.status_code for response in (unknown, without, over)] == [404, 404, 404]
    assert "not under way" in over.json()["error"]["message"]
    assert client.calls == []


async def test_a_wrong_key_is_refused(attempt: Attempt, http: httpx.AsyncClient, client: Any) -> None:
    http.headers["Authorization"] = "Bearer sk-wrong"
    assert 400 <= (await attempt.ask()).status_code < 500
    assert client.calls == []


async def test_a_failed_sampling_call_is_an_error_and_is_not_repeated_by_the_gateway(
    attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    failing = saying("7", fail_calls=frozenset({0}))
    await served.publish(failing)
    assert (await attempt.ask()).status_code == 500
    assert len(failing.calls) == 1
    assert attempt.turns() == ()


async def test_turns_after_a_failed_sampling_call_keep_their_order(
    attempt: Attempt, served: Any, saying: Callable[..., Any], decode: Callable[[Iterable[int]], str]
) -> None:
    await served.publish(saying("7", fail_calls=frozenset({0})))
    assert (await attempt.ask()).status_code == 500
    for content in ("z", "a"):
        assert text_of(await attempt.ask(messages=[{"role": "user", "content": content}])) == "7"
    asked = [decode(turn.prompt_tokens).split("\n")[1] for turn in attempt.turns()]
    assert asked == ["z<|im_end|>", "a<|im_end|>"]


async def test_agents_reach_the_gateway_past_a_proxy_that_does_not_answer(
    attempt: Attempt, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.rollouts.loopback import bypass_proxies  # for start-up time, as in conftest

    for name in ("NO_PROXY", "no_proxy"):
        assert {"127.0.0.1", "localhost"} <= set(os.environ[name].split(",")), "the start of a gateway adds them"
        monkeypatch.delenv(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "internal.example")

        async def ask() -> httpx.Response:
            headers = {"Authorization": f"Bearer {served.gateway.key}"}
            async with httpx.AsyncClient(base_url=served.gateway.address, headers=headers, timeout=20) as client:
                attempt.http = client
                return await attempt.ask()

        with pytest.raises(httpx.ConnectError):
            await ask()
        bypass_proxies(served.gateway.address)
        assert text_of(await ask()) == "7"
    assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == "internal.example,127.0.0.1,localhost"


async def test_a_call_ends_under_the_version_it_began_with(
    attempt: Attempt, served: Any, client: FakeSamplingClient, saying: Callable[..., Any]
) -> None:
    """H25."""
    await served.publish(client, policy_version=1)
    client.hold()
    in_flight = asyncio.create_task(attempt.ask())
    await asyncio.to_thread(client.arrived.get, timeout=10)
    await served.publish(saying("8"), policy_version=2)
    messages = [{"role": "user", "content": "later"}]
    later = await attempt.ask(messages=messages)
    client.release()
    assert text_of(await in_flight) == "7"
    assert text_of(later) == "8"
    assert [turn.policy_version for turn in attempt.turns()] == [1, 2]


async def test_a_reply_that_comes_after_its_attempt_is_refused_and_not_kept(
    attempt: Attempt, served: Any, client: FakeSamplingClient
) -> None:
    late_before = served.capture.late_turns
    client.hold()
    in_flight = asyncio.create_task(attempt.ask())
    await asyncio.to_thread(client.arrived.get, timeout=10)
    assert attempt.turns() == ()
    client.release()
    assert (await in_flight).status_code == 404
    assert served.capture.late_turns == late_before + 1


async def test_parallel_calls_are_served_at_once(attempt: Attempt, client: FakeSamplingClient) -> None:
    client.hold()
    began = time.monotonic()
    calls = [asyncio.create_task(attempt.ask(messages=[{"role": "user", "content": str(i)}])) for i in range(8)]
    for _ in calls:
        await asyncio.to_thread(client.arrived.get, timeout=10)
    client.release()
    assert {(await call).status_code for call in calls} == {200}
    assert time.monotonic() - began < 10
    assert len(attempt.turns()) == 8
