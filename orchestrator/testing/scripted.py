"""A model that says what it is told to, over real HTTP, so that an agent can be tested without one that thinks."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, TypeAlias

from orchestrator.rollouts.compat import LLM

KEY = "key-of-the-script"

Reply: TypeAlias = str | Sequence[tuple[str, Mapping[str, Any]]]
"""A text, or calls of tools, each as name and arguments."""


@dataclass(slots=True)
class ScriptedModel:
    """What ``scripted_llm`` gives."""

    llm: LLM
    """Reaches the model; give it to the agent."""
    replies: list[Reply]
    """Those still to be given; more may be added."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """What it was asked, in order: the bodies of the chat-completion requests."""


@contextmanager
def scripted_llm(*replies: Reply) -> Iterator[ScriptedModel]:
    """A model that gives ``replies`` one after the other, and then refuses with status 400, while the context lasts.

    With it, ``asyncio.run(my_agent(task, model.llm))`` gives the reward of a rollout in which the model said so.
    """
    # Port 0: any free one; the true address is known once it is bound.
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    model = ScriptedModel(LLM(endpoint=address, model="policy", api_key=KEY), list(replies))
    server.RequestHandlerClass = type("_Bound", (_Handler,), {"model": model})
    serving = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield model
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    model: ScriptedModel

    def do_POST(self) -> None:
        """Answers one request."""
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        if self.headers.get("authorization") != f"Bearer {KEY}":
            self._answer(401, {"error": {"message": "wrong key: give the client api_key=llm.api_key"}})
        elif not self.path.endswith("/chat/completions"):
            self._answer(404, {"error": {"message": f"{self.path}: a scripted model serves chat completions only"}})
        elif not self.model.replies:
            self._answer(400, {"error": {"message": "the script is over: the agent asked more than it has replies"}})
        else:
            self.model.requests.append(body)
            self._answer(200, _completion(self.model.replies.pop(0), body.get("model"), len(self.model.requests)))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Says nothing: the requests are kept."""

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _completion(reply: Reply, model: Any, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{position}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for position, (name, arguments) in enumerate(reply)
        ]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if isinstance(reply, str) else "tool_calls"}
    return {"id": f"scripted-{number}", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
