"""A server that speaks the chat-completions protocol and says what it is told to, over real HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

# The door to agentlightning, before any recipe imports it: without it litellm asks the network for its prices.
import orchestrator.rollouts.compat  # noqa: F401

KEY = "key-of-the-run"


@dataclass
class ScriptedModel:
    """Answers one request after the other from ``replies``, and keeps what it was asked."""

    replies: list[str] = field(default_factory=list)
    conversations: list[list[dict[str, str]]] = field(default_factory=list)
    """The messages of each request."""
    llm: Any = None
    """What an agent is given to reach this model."""

    async def answer(self, request: Request) -> JSONResponse:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return JSONResponse({"error": {"message": "wrong key"}}, status_code=401)
        body = await request.json()
        self.conversations.append(body["messages"])
        if not self.replies:
            return JSONResponse({"error": {"message": "the script is over"}}, status_code=400)
        message = {"role": "assistant", "content": self.replies.pop(0)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse(
            {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        )


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    from agentlightning import LLM  # here, after its door above

    scripted = ScriptedModel()
    routes = [Route("/v1/chat/completions", scripted.answer, methods=["POST"])]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes connections before the server runs
        port = listening.getsockname()[1]
        scripted.llm = LLM(endpoint=f"http://127.0.0.1:{port}/v1", model="policy", api_key=KEY)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        yield scripted
        server.should_exit = True
        await serving
