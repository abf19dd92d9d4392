"""The gateway that agents call: Agent-lightning's LiteLLM proxy in a thread of this process, loopback only."""

import asyncio
import logging
import secrets
import socket
from typing import Any

import httpx

from orchestrator.errors import GatewayError
from orchestrator.names import batch_name
from orchestrator.rollouts import compat
from orchestrator.rollouts.compat import (
    InMemoryLightningStore,
    LLMProxy,
    NamedResources,
    ProxyLLM,
    PythonServerLauncherArgs,
)
from orchestrator.rollouts.loopback import bypass_proxies
from orchestrator.rollouts.provider import Policy, Provider

HOST = "127.0.0.1"
MODEL = "policy"
RESOURCE = "main_llm"
"""Under this name agents that are classes find the model in their resources."""
START_SECONDS = 60.0
"""A loaded machine may need many; that another process has the port shows at once."""
CHECK_SECONDS = 2.0


class Gateway:
    """One running proxy; a process can have one at a time, because LiteLLM's application is process-wide.

    Every route but the health check asks for a random bearer key that is new with each gateway.
    """

    def __init__(self, *, provider: Provider, port: int = 0) -> None:
        """``port`` 0 takes any free one."""
        # The proxy's thread and the runners' both use it.
        self.store = InMemoryLightningStore(thread_safe=True)
        """Agent-lightning's store: resources, and the rollouts that are run against them."""
        self._provider = provider
        self._port = port
        self._key = f"sk-{secrets.token_hex(24)}"
        self._proxy: LLMProxy | None = None

    @property
    def address(self) -> str:
        """Where the gateway listens, e.g. ``http://127.0.0.1:4000``."""
        return f"http://{HOST}:{self._port}"

    @property
    def key(self) -> str:
        """The bearer key that agents get with their resources."""
        return self._key

    async def start(self) -> None:
        """Listens, and makes sure that what answers is this gateway; agents then reach it past any ``HTTP_PROXY``.

        Raises:
            GatewayError: the port is held by another process, which shows at once, or the proxy does not come up.
        """
        self._port = _claimable_port(self._port)
        bypass_proxies()
        compat.silence_litellm()
        compat.allow_restart()
        compat.set_master_key(self._key)
        compat.install_provider("orchestrator", self._provider)
        self._provider.open()
        proxy = LLMProxy(
            store=self.store,
            model_list=[{"model_name": MODEL, "litellm_params": {"model": f"orchestrator/{MODEL}"}}],
            launcher_args=PythonServerLauncherArgs(
                port=self._port,
                host=HOST,
                access_host=HOST,
                launch_mode="thread",
                healthcheck_url="/health/liveliness",
                startup_timeout=START_SECONDS,
                log_level=logging.WARNING,
            ),
            # Capture is the provider's, so no spans are made; a retry or a cooldown here would sample a turn twice or
            # refuse healthy calls after a bad one.
            callbacks=[],
            num_retries=0,
            litellm_config={"router_settings": {"num_retries": 0, "disable_cooldowns": True}},
        )
        try:
            await asyncio.wait_for(proxy.start(), START_SECONDS)
            await self._check_identity()
        except (RuntimeError, TimeoutError, httpx.HTTPError) as error:
            if proxy.is_running():
                await proxy.stop()
            raise GatewayError(
                f"the gateway did not come up on {HOST}:{self._port}: {error!r}. Set gateway_port to a free port, or 0 "
                "for any; the same command then resumes."
            ) from error
        self._proxy = proxy

    async def stop(self) -> None:
        """Closes the port and ends the thread; calls in flight are answered 503. Does nothing when not started."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            self._provider.close()
            await proxy.stop()

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

    async def _check_identity(self) -> None:
        """Only this gateway takes its own fresh key and no other.

        Raises:
            RuntimeError: something else answers on the port.
        """
        async with httpx.AsyncClient(base_url=self.address, timeout=CHECK_SECONDS, trust_env=False) as client:
            ours = await client.get("/v1/models", headers=_bearer(self._key))
            other = await client.get("/v1/models", headers=_bearer(f"{self._key}-not"))
        if ours.status_code != httpx.codes.OK or other.status_code < httpx.codes.BAD_REQUEST:
            raise RuntimeError(f"another server answers there ({ours.status_code} and {other.status_code})")
        names = [model["id"] for model in ours.json()["data"]]
        if names != [MODEL]:
            raise RuntimeError(f"another server answers there (it serves {names})")


def _bearer(key: str) -> dict[str, Any]:
    return {"Authorization": f"Bearer {key}"}


def _claimable_port(port: int) -> int:
    """``port``, or a free one for 0, after binding it for a moment.

    Raises:
        GatewayError: another process holds it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise GatewayError(
                f"gateway_port={port}: another process listens on {HOST}:{port} ({error.strerror}). Stop it, or set "
                "gateway_port to a free port or to 0 for any; the same command then resumes."
            ) from error
        return int(probe.getsockname()[1])
