"""One gateway of a kind for all tests of this folder: its imports take ten seconds and llm_proxy's start one."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from rollouts.characters import END, VOCABULARY, character_tokenizer


@dataclass
class Served:
    """A running gateway and what stands behind it."""

    gateway: Any
    provider: Any
    capture: Any
    resources_id: str = ""

    async def publish(self, client: Any, *, policy_version: int = 0) -> None:
        """Serves ``client`` with 16 tokens a reply: training at temperature 1.0, evaluation at 0.0."""
        # Imported here, as below, for start-up time: the other tests of this folder need none of it.
        from orchestrator.rollouts.provider import Policy
        from orchestrator.rollouts.requests import SamplingDefaults

        policy = Policy(client, policy_version, SamplingDefaults(16), SamplingDefaults(16, temperature=0.0))
        self.resources_id = await self.gateway.publish(policy)

    def runner(self, agent: Any, *, timeout_seconds: float = 30.0) -> Any:
        """An inline runner of ``agent``."""
        from orchestrator.rollouts.runners.inline import InlineRunner

        return InlineRunner(agent, store=self.gateway.store, capture=self.capture, timeout_seconds=timeout_seconds)


@pytest.fixture(scope="session")
def gateway_process(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A running gateway: slim, or of the kind that a test is parametrized with."""
    from tinker_cookbook.renderers import get_renderer

    from orchestrator.rollouts.capture import Capture
    from orchestrator.rollouts.gateway import Gateway
    from orchestrator.rollouts.provider import Provider
    from orchestrator.rollouts.rendering import Rendering

    tokenizer = character_tokenizer()
    capture = Capture(run_seed=7)
    provider = Provider(rendering=Rendering(get_renderer("qwen3_instruct", tokenizer), tokenizer), capture=capture)
    gateway = Gateway(provider=provider, kind=getattr(request, "param", "slim"))
    asyncio.run(gateway.start())
    yield Served(gateway, provider, capture)
    asyncio.run(gateway.stop())


@pytest.fixture
async def served(gateway_process: Served, client: Any) -> Served:
    """The gateway, serving ``client`` as policy version 0."""
    await gateway_process.publish(client)
    return gateway_process


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {served.gateway.key}"}
    async with httpx.AsyncClient(base_url=served.gateway.address, headers=headers, timeout=20) as client:
        yield client


@pytest.fixture
def attempt(served: Served, http: httpx.AsyncClient) -> Any:
    """An attempt under way at the first rollout of batch 0."""
    from rollouts.calls import Attempt  # for start-up time

    from orchestrator.rollouts.outcomes import RolloutKey

    return Attempt(served, http, RolloutKey(0, "train", 0, 0))


@pytest.fixture
def client(saying: Callable[..., Any]) -> Any:
    """A sampling client that always says 7."""
    return saying("7")


@pytest.fixture
def saying(encode: Callable[[str], list[int]]) -> Callable[..., Any]:
    """Makes sampling clients that always say the same text, and end the message unless told not to."""
    from orchestrator.testing import FakeSamplingClient

    def make(text: str, *, end: bool = True, **options: Any) -> FakeSamplingClient:
        tokens = [*encode(text), *([VOCABULARY[END]] if end else [])]
        return FakeSamplingClient(lambda _prompt, _params: tokens, **options)

    return make


@pytest.fixture(scope="session")
def encode() -> Callable[[str], list[int]]:
    return lambda text: [VOCABULARY[character] for character in text]


@pytest.fixture(scope="session")
def decode() -> Callable[[Iterable[int]], str]:
    names = {number: entry for entry, number in VOCABULARY.items()}
    return lambda tokens: "".join(names[token] for token in tokens)
