"""The gateway as Agent-lightning makes it: the whole LiteLLM proxy in a thread of this process."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import httpx

from orchestrator.errors import GatewayError
from orchestrator.rollouts import compat
from orchestrator.rollouts.compat import (
    CustomLLM,
    CustomLLMError,
    InMemoryLightningStore,
    LLMProxy,
    ModelResponse,
    PythonServerLauncherArgs,
)
from orchestrator.rollouts.gateway.listening import Binding
from orchestrator.rollouts.gateway.wire import MODEL, NO_ROLLOUT, model_response
from orchestrator.rollouts.provider import NOT_FOUND, CallError, Provider, made_again
from orchestrator.rollouts.revealing import TokenTelemetry

START_SECONDS = 60.0
"""A loaded machine may need many, for starting and for its first answer; that another process has the port shows at
once."""


class ServedByLiteLLM(CustomLLM):  # type: ignore[misc]  # LiteLLM's classes are Any here
    """The provider as LiteLLM calls it."""

    def __init__(self, provider: Provider) -> None:
        super().__init__()
        self._provider = provider

    async def acompletion(self, **kwargs: Any) -> ModelResponse:
        """One chat completion; LiteLLM's entry point.

        Raises:
            CustomLLMError: with the status of the provider's ``CallError``.
        """
        try:
            headers = _headers(kwargs["litellm_params"])
            completion = await self._provider.complete(
                *_ids(headers), kwargs["messages"], kwargs["optional_params"], again=made_again(headers)
            )
        except CallError as error:
            raise CustomLLMError(status_code=error.status, message=str(error)) from error
        return model_response(completion)


class LLMProxyServer:
    """One proxy; a process can have one at a time, because LiteLLM's application is process-wide."""

    def __init__(self, provider: Provider, key: str, store: InMemoryLightningStore, *, spans: bool) -> None:
        """``key`` is asked for on all routes but the health check; ``spans``: each call leaves its own in ``store``."""
        self._callbacks = [TokenTelemetry] if spans else []
        self._served = ServedByLiteLLM(provider)
        self._key = key
        self._store = store
        self._proxy: LLMProxy | None = None

    async def start(self, binding: Binding) -> Binding:
        """Listens, and makes sure that what answers is this proxy.

        Raises:
            GatewayError: another process holds the port, which shows at once, or the proxy does not come up.
        """
        binding = _claimable(binding)
        if self._callbacks:
            compat.silence_spans()
        compat.allow_restart()
        compat.set_master_key(self._key)
        compat.install_provider("orchestrator", self._served)
        proxy = LLMProxy(
            store=self._store,
            model_list=[{"model_name": MODEL, "litellm_params": {"model": f"orchestrator/{MODEL}"}}],
            launcher_args=PythonServerLauncherArgs(
                port=binding.port,
                host=binding.host,
                access_host=binding.local_host,
                launch_mode="thread",
                healthcheck_url="/health/liveliness",
                startup_timeout=START_SECONDS,
                log_level=logging.WARNING,
            ),
            callbacks=self._callbacks,
            # A retry or a cooldown here would sample a turn twice or refuse healthy calls after a bad one.
            num_retries=0,
            litellm_config={"router_settings": {"num_retries": 0, "disable_cooldowns": True}},
        )
        try:
            await asyncio.wait_for(proxy.start(), START_SECONDS)
            await self._check_identity(binding)
        except (RuntimeError, TimeoutError, httpx.HTTPError) as error:
            if proxy.is_running():
                await proxy.stop()
            raise GatewayError(
                f"the gateway did not come up on {binding.host}:{binding.port}: {error!r}. Where another server holds "
                "the port, set gateway_port to a free one, or 0 for any; the same command then resumes."
            ) from error
        self._proxy = proxy
        return binding

    async def stop(self) -> None:
        """Closes the port and ends the thread."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()

    async def _check_identity(self, binding: Binding) -> None:
        """Only this proxy takes its own fresh key and no other.

        Raises:
            RuntimeError: something else answers on the port.
        """
        async with httpx.AsyncClient(base_url=binding.address, timeout=START_SECONDS, trust_env=False) as client:
            ours = await client.get("/v1/models", headers={"Authorization": f"Bearer {self._key}"})
            other = await client.get("/v1/models", headers={"Authorization": f"Bearer {self._key}-not"})
        if ours.status_code != httpx.codes.OK or other.status_code < httpx.codes.BAD_REQUEST:
            raise RuntimeError(f"another server answers there ({ours.status_code} and {other.status_code})")
        names = [model["id"] for model in ours.json()["data"]]
        if names != [MODEL]:
            raise RuntimeError(f"another server answers there (it serves {names})")


def _claimable(binding: Binding) -> Binding:
    """Where the proxy can listen, after listening there for a moment: it takes no socket of ours."""
    listener, chosen = binding.listen()
    listener.close()
    return chosen


def _headers(litellm_params: Mapping[str, Any]) -> Mapping[str, str]:
    """Those of the client's request, with what Agent-lightning's middleware added; names in lower case."""
    request = litellm_params.get("proxy_server_request") or {}
    return request.get("headers") or {}


def _ids(headers: Mapping[str, str]) -> tuple[str, str]:
    """The rollout and attempt id that Agent-lightning's middleware took from the address."""
    rollout_id, attempt_id = headers.get("x-rollout-id"), headers.get("x-attempt-id")
    if not rollout_id or not attempt_id:
        raise CallError(NOT_FOUND, NO_ROLLOUT)
    return rollout_id, attempt_id
