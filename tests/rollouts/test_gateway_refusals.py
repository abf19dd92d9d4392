"""Laws of a call that is not answered: the right status in the caller's own shape, and nothing sampled or told."""

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
import structlog
from rollouts.calls import USER, Attempt

from orchestrator.testing import FakeSamplingClient

FORMATS = ("chat/completions", "messages", "responses")
CANARY = "CANARY-77"


def told(response: httpx.Response, path: str) -> str:
    """The message of an error in the shape of the interface that was called."""
    body = response.json()
    if path == "messages":
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


@pytest.fixture(autouse=True)
def nothing_is_sampled(client: FakeSamplingClient) -> Any:
    yield
    assert client.calls == []


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"model": "policy", "messages": [',
        b'{"model": "policy", "messages": [{"role": "user", "content": "\xff"}]}',
        b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 4}',
        b'{"model": "policy", "temperature": NaN}',
        b"[" * 100_000,
        b"[]",
        b"7",
    ],
)
async def test_what_is_not_json_is_a_bad_request(attempt: Attempt, path: str, body: bytes) -> None:
    response = await attempt.http.post(f"{attempt.path}/{path}", content=body)
    assert response.status_code == 400
    assert "body" in told(response, path)


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"messages": None, "input": None},
        {"messages": [], "input": []},
        {"messages": 7, "input": 7},
        {"messages": [7], "input": [7]},
        {"messages": [{}], "input": [{}]},
        {"messages": [{"role": "user"}], "input": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": 7}], "input": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": [7]}], "input": [{"role": "user", "content": [7]}]},
        {"messages": [{"role": "nobody", "content": "x"}], "input": [{"role": "nobody", "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "smell"}]}], "input": [{"type": "smell"}]},
        {"messages": USER, "input": "x", "temperature": "hot"},
        {"messages": USER, "input": "x", "tools": 7},
        {"messages": USER, "input": "x", "tools": [7]},
        {"messages": USER, "input": "x", "unheard_of": 7},
        {"messages": USER, "input": "x", "stream": "yes"},
        {"messages": USER, "input": "x", "n": 0},
    ],
)
async def test_a_malformed_request_is_a_bad_request(attempt: Attempt, path: str, fields: dict[str, Any]) -> None:
    limit = {"max_tokens": 4} if path == "messages" else {}
    response = await attempt.post(path, **limit, **fields)
    assert response.status_code == 400, response.text
    assert told(response, path)


async def test_what_an_interface_needs_or_cannot_have_is_named(attempt: Attempt) -> None:
    lacking = await attempt.post("messages", messages=USER)
    remembering = await attempt.post("responses", input="x", previous_response_id="resp_1")
    many = await attempt.post("responses", input="x", n=2)
    assert [response.status_code for response in (lacking, remembering, many)] == [400, 400, 400]
    assert "max_tokens" in told(lacking, "messages")
    assert "previous_response_id" in told(remembering, "responses")
    assert "n: " in told(many, "responses")


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize("key", [None, "", "Bearer", "Bearer sk-wrong", "Basic x"])
async def test_a_missing_or_wrong_key_is_unauthorized_on_every_route(
    attempt: Attempt, path: str, key: str | None
) -> None:
    del attempt.http.headers["authorization"]
    headers = {} if key is None else {"Authorization": key}
    responses = [
        await attempt.http.post(f"{attempt.path}/{path}", json={}, headers=headers),
        await attempt.http.post(f"/v1/{path}", content=b"[", headers={**headers, "x-api-key": "sk-wrong"}),
        await attempt.http.get(f"/no/such/route/{path}", headers=headers),
    ]
    assert [response.status_code for response in responses] == [401, 401, 401]
    assert all("key" in told(response, path) for response in responses)


async def test_only_the_health_check_wants_no_key_and_it_says_nothing(attempt: Attempt) -> None:
    del attempt.http.headers["authorization"]
    health = await attempt.http.get("/health")
    assert (health.status_code, health.content) == (204, b"")
    for path in ("/", "/docs", "/openapi.json", "/health/", "/v1/models", f"{attempt.path}/models"):
        assert (await attempt.http.get(path)).status_code == 401


@pytest.mark.parametrize("path", FORMATS)
async def test_what_is_not_served_is_not_found(attempt: Attempt, path: str) -> None:
    elsewhere = attempt.path.replace("/attempt/at-0", "/attempt/at-1")
    asked = {"messages": USER, "input": "x", "max_tokens": 4, "max_output_tokens": 4}
    fields = {name: asked[name] for name in (("input",) if path == "responses" else ("messages", "max_tokens"))}
    responses = [
        await attempt.http.post(f"{elsewhere}/{path}", json={"model": "policy", **fields}),
        await attempt.http.post(f"/v1/{path}", json={"model": "policy", **fields}),
        await attempt.http.post(f"{attempt.path}/{path}", json={"model": "gpt-4o", **fields}),
    ]
    assert [response.status_code for response in responses] == [404, 404, 404]
    messages = [told(response, path) for response in responses]
    assert "not under way" in messages[0]
    assert "belongs to no rollout" in messages[1]
    assert "'policy'" in messages[2]
    unknown = await attempt.http.post(f"{attempt.path}/embeddings", json={})
    assert unknown.status_code == 404
    assert told(unknown, "embeddings")


@pytest.mark.parametrize("path", FORMATS)
async def test_another_method_is_not_allowed(attempt: Attempt, path: str) -> None:
    response = await attempt.http.get(f"{attempt.path}/{path}")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert told(response, path)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_without_end_is_refused_before_it_is_read(attempt: Attempt, served: Any, announced: bool) -> None:
    """A raw socket, because clients send the whole body before they look for an answer."""
    place = urlsplit(served.gateway.address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    size = "Content-Length: 99999999999" if announced else "Transfer-Encoding: chunked"
    head = f"POST {attempt.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.gateway.key}\r\n"
    writer.write(f"{head}{size}\r\n\r\n".encode())
    chunk = b"100000\r\n" + b"x" * 2**20 + b"\r\n"
    answer = asyncio.create_task(reader.readuntil(b"\r\n"))
    for _ in range(0 if announced else 64):
        if answer.done():
            break
        writer.write(chunk)
        await writer.drain()
    assert (await asyncio.wait_for(answer, 10)).split()[1] == b"413"
    writer.close()


async def test_a_stopping_gateway_tells_clients_not_to_try_again(
    attempt: Attempt, served: Any, client: FakeSamplingClient
) -> None:
    served.provider.close()
    agent = openai.AsyncOpenAI(base_url=f"{served.gateway.address}{attempt.path}", api_key=served.gateway.key)
    try:
        with pytest.raises(openai.InternalServerError) as refused:
            await asyncio.wait_for(agent.chat.completions.create(model="policy", messages=USER), 5)
    finally:
        served.provider.open()
    assert refused.value.status_code == 503
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.response.request.headers["x-stainless-retry-count"] == "0"


async def test_a_refusal_quotes_no_prompt_in_the_log(
    attempt: Attempt, served: Any, encode: Callable[[str], list[int]], saying: Callable[..., Any]
) -> None:
    await served.publish(saying("7", fail_calls=frozenset(range(9))))
    prompt = [{"role": "user", "content": CANARY}]
    with structlog.testing.capture_logs() as lines:
        statuses = [
            (await attempt.ask(messages=prompt)).status_code,
            (await attempt.ask(messages=prompt, temperature=CANARY)).status_code,
            (await attempt.ask(messages=[{"role": CANARY, "content": CANARY}])).status_code,
            (await attempt.post("messages", messages=prompt, max_tokens=4, tools=[CANARY])).status_code,
            (await attempt.post("responses", input=[{"type": CANARY}])).status_code,
        ]
    assert statuses == [500, 400, 400, 400, 400]
    assert lines
    assert CANARY not in str(lines)


def hang_up_during_a_call(served: Any, attempt: Attempt, until: Callable[[], object]) -> None:
    """A client that asks and closes its connection without a reply, once ``until`` returns."""
    place = urlsplit(served.gateway.address)
    with socket.create_connection((place.hostname, place.port)) as agent:
        body = b'{"model": "policy", "messages": [{"role": "user", "content": "hello"}]}'
        head = f"POST {attempt.path}/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.gateway.key}"
        agent.sendall(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until()


async def test_a_call_that_nobody_waits_for_any_more_is_abandoned(
    attempt: Attempt, served: Any, saying: Callable[..., Any]
) -> None:
    held = saying("7")
    await served.publish(held)
    held.hold()
    await asyncio.to_thread(hang_up_during_a_call, served, attempt, lambda: held.arrived.get(timeout=10))
    async with asyncio.timeout(10):
        while served.provider.num_in_flight:
            await attempt.http.get("/health")  # the gateway's loop has gone round by the time it answers
    held.release()
    assert (await attempt.ask()).status_code == 200
    assert len(attempt.turns()) == 1


async def test_a_reply_whose_client_hung_up_while_the_gateway_was_busy_is_not_kept(
    attempt: Attempt, served: Any, encode: Callable[[str], list[int]]
) -> None:
    """The event loop has not come round since, and has yet to hear that the client is gone."""
    busy, gone = threading.Event(), threading.Event()

    def answer(_prompt: Any, _params: Any) -> list[int]:
        busy.set()
        assert gone.wait(10)  # on the gateway's event loop
        return encode("7")

    await served.publish(FakeSamplingClient(answer))
    await asyncio.to_thread(hang_up_during_a_call, served, attempt, lambda: busy.wait(10))
    gone.set()
    await attempt.http.get("/health")
    assert attempt.turns() == ()


async def test_the_name_of_the_authorization_scheme_has_no_case(attempt: Attempt, served: Any) -> None:
    attempt.http.headers["authorization"] = f"bearer {served.gateway.key}"
    assert (await attempt.http.get("/v1/models")).status_code == 200
