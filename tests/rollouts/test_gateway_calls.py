"""Laws of a call through the real proxy: what the agent asks is what is sampled, captured and answered."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import httpx
import pytest

from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.testing import FakeSamplingClient

USER = [{"role": "user", "content": "hello"}]


class Attempt:
    """One registered attempt and its calls."""

    def __init__(self, served: Any, http: httpx.AsyncClient, key: RolloutKey) -> None:
        self.served, self.http = served, http
        self.ids = (f"ro-{key}", "at-0")
        served.capture.register(*self.ids, key, 0)

    async def ask(self, *, ids: tuple[str, str] | None = None, **body: Any) -> httpx.Response:
        rollout_id, attempt_id = ids or self.ids
        return await self.http.post(
            f"/rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions",
            json={"model": "policy", "messages": USER, **body},
        )

    def turns(self) -> Any:
        return self.served.capture.collect(*self.ids)


@pytest.fixture
async def http(served: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {served.gateway.key}"}
    async with httpx.AsyncClient(base_url=served.gateway.address, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def attempt(served: Any, http: httpx.AsyncClient) -> Attempt:
    return Attempt(served, http, RolloutKey(0, "train", 0, 0))


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


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


async def test_tools_are_refused_and_a_refusal_does_not_harm_the_next_call(attempt: Attempt) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    refusals = [await attempt.ask(tools=tools) for _ in range(5)]
    assert {response.status_code for response in refusals} == {400}
    assert "tools" in refusals[0].json()["error"]["message"]
    assert text_of(await attempt.ask()) == "7"


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


async def test_a_streaming_client_is_served(attempt: Attempt) -> None:
    response = await attempt.ask(stream=True)
    assert response.status_code == 200
    assert '"content": "7"' in response.text
    assert response.text.rstrip().endswith("data: [DONE]")


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
        bypass_proxies()
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
