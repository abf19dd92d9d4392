"""A crew behind HTTP, for the Python environment that has CrewAI; of this project it needs nothing.

``python crew_service.py`` prints where it listens. A rollout is one POST with the task and with the name, the
address and the key of the model that this rollout is to call.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from crewai import LLM, Agent, Crew, Task


def play(task: str, model: str, endpoint: str, api_key: str) -> str:
    """Two tasks one after the other, each a call of the model; what the second comes to."""
    llm = LLM(model=f"openai/{model}", base_url=endpoint, api_key=api_key)
    speaker = Agent(role="speaker", goal="say letters", backstory="You speak.", llm=llm)
    first = Task(description=task, expected_output="letters", agent=speaker)
    second = Task(description="on", expected_output="letters", agent=speaker, context=[first])
    return str(Crew(agents=[speaker], tasks=[first, second]).kickoff().raw)


class Service(BaseHTTPRequestHandler):
    """One rollout a request, each in a thread of its own."""

    def do_POST(self) -> None:
        """Answers what the crew said; a crew that fails closes the connection, which fails the rollout."""
        asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps({"answer": play(**asked)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Says nothing of every request."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
