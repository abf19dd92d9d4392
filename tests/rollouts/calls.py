"""An attempt that is under way, and its calls of the gateway, written out as HTTP."""

from typing import Any

import httpx

from orchestrator.rollouts.outcomes import RolloutKey

USER: list[Any] = [{"role": "user", "content": "hello"}]


class Attempt:
    """One registered attempt and its calls."""

    def __init__(self, served: Any, http: httpx.AsyncClient, key: RolloutKey) -> None:
        self.served, self.http = served, http
        self.ids = (f"ro-{key}", "at-0")
        served.capture.register(*self.ids, key, 0)

    @property
    def path(self) -> str:
        return "/rollout/{}/attempt/{}/v1".format(*self.ids)

    async def ask(self, *, ids: tuple[str, str] | None = None, **body: Any) -> httpx.Response:
        rollout_id, attempt_id = ids or self.ids
        return await self.http.post(
            f"/rollout/{rollout_id}/attempt/{attempt_id}/v1/chat/completions",
            json={"model": "policy", "messages": USER, **body},
        )

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(f"{self.path}/{path}", json={"model": "policy", **body})

    def turns(self) -> Any:
        return self.served.capture.collect(*self.ids)


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])
