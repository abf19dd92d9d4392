"""The gateway that agents call: the published policy behind OpenAI's and Anthropic's HTTP interfaces, with one key.

Two servers stand behind the same :class:`Gateway`: ``slim``, this project's own few routes, and ``llm_proxy``,
Agent-lightning's LiteLLM proxy. Both answer from the same :class:`~orchestrator.rollouts.provider.Provider`, so what is
captured does not depend on which one runs.
"""

from typing import Literal

from orchestrator.names import batch_name
from orchestrator.redaction import new_run_key
from orchestrator.rollouts import compat
from orchestrator.rollouts.compat import InMemoryLightningStore, NamedResources, ProxyLLM
from orchestrator.rollouts.gateway.listening import Binding
from orchestrator.rollouts.gateway.llm_proxy import LLMProxyServer
from orchestrator.rollouts.gateway.slim import SlimServer
from orchestrator.rollouts.gateway.wire import MODEL
from orchestrator.rollouts.loopback import bypass_proxies
from orchestrator.rollouts.provider import Policy, Provider

RESOURCE = "main_llm"
"""Under this name agents that are classes find the model in their resources."""

GatewayKind = Literal["slim", "llm_proxy"]


class Gateway:
    """One running gateway and the store that its resources are in; both are of this process.

    Every route but the health check asks for a random bearer key that is new with each gateway. A process can have any
    number of slim gateways at a time, but one ``llm_proxy``, because LiteLLM's application is process-wide.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        kind: GatewayKind = "slim",
        host: str = "127.0.0.1",
        port: int = 0,
        address: str | None = None,
        spans: bool = False,
    ) -> None:
        """``host`` and ``port`` are where it listens; ``port`` 0 takes any free one.

        ``address`` is what agents are told; without it, host and port, which must then be reachable as they stand.
        With ``spans`` each call leaves its spans in the store, which only ``llm_proxy`` makes.
        """
        # The gateway's thread and the runners' both use it.
        self.store = InMemoryLightningStore(thread_safe=True)
        """Agent-lightning's store: resources, and the rollouts that are run against them."""
        self._provider = provider
        self._binding = Binding(host, port)
        self._address = address
        self._key = new_run_key()
        self._server: SlimServer | LLMProxyServer = (
            SlimServer(provider, self._key)
            if kind == "slim"
            else LLMProxyServer(provider, self._key, self.store, spans=spans)
        )
        self._started = False

    @property
    def address(self) -> str:
        """Where agents reach the gateway, e.g. ``http://127.0.0.1:4000``."""
        return self._address or self._binding.address

    @property
    def key(self) -> str:
        """The bearer key that agents get with their resources."""
        return self._key

    async def start(self) -> None:
        """Listens, and makes sure that what answers is this gateway; agents then reach it past any ``HTTP_PROXY``.

        Raises:
            GatewayError: the port is held by another process, which shows at once, or the server does not come up.
        """
        compat.silence_litellm()  # its translations log, too
        self._provider.open()
        self._binding = await self._server.start(self._binding)
        self._started = True
        bypass_proxies(self.address)

    async def stop(self) -> None:
        """Closes the port and ends the thread; calls in flight are answered 503. Does nothing when not started."""
        if self._started:
            self._started = False
            self._provider.close()
            await self._server.stop()

    async def publish(self, policy: Policy) -> str:
        """Serves ``policy`` from the next call on, and registers its resources in the store under the id returned.

        The id follows from the policy's version, so every process that publishes it gives the same. Calls in flight end
        under the policy they began with.
        """
        self._provider.publish(policy)
        update = await self.store.update_resources(f"policy-{batch_name(policy.policy_version)}", self.resources())
        return str(update.resources_id)

    def resources(self) -> NamedResources:
        """What agents are given: the model's address for their rollout, its name and its key."""
        return {RESOURCE: ProxyLLM(endpoint=f"{self.address}/v1", model=MODEL, api_key=self._key)}
