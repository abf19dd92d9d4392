"""Fixes that Agent-lightning 0.3.0 and LiteLLM 1.108 need, each with its reason, and the one door to both.

Other modules of the project take the names of both libraries from here, so that neither is imported before its
environment is set. ``tests/rollouts/test_compat.py`` has one test per fix that fails on the day it is not needed:

- ``LITELLM_LOCAL_MODEL_COST_MAP``: litellm 1.108 asks the network for a price list when it is imported.
- ``AGENTOPS_LOGGING_TO_FILE``, ``AGENTOPS_LOG_SESSION_REPLAY_URL``, ``AGENTOPS_LOG_LEVEL``: the tracer of
  agentlightning 0.3.0 is AgentOps', which writes ``agentops.log`` where it stands, prints an address for each rollout,
  and quotes requests in the errors that it shows.
- ``silence_litellm``: litellm 1.108 prints a banner and its models on stdout when the proxy starts, and has log
  handlers of its own whose lines may quote requests.
- ``silence_spans``: the telemetry of litellm 1.108 touches spans after their end, and that of agentlightning 0.3.0
  warns of every request that is no rollout's.
- ``allow_restart``: in litellm 1.108 one stopped proxy marks the whole process as shutting down, for good.
- ``set_master_key``: the proxy of litellm 1.108 takes its key from ``LITELLM_MASTER_KEY``; without one, agentlightning
  0.3.0 does not start it.
- ``install_provider``: litellm 1.108 knows custom providers process-wide only.
- ``forget_rollout``, ``forget_resources``: the in-memory store of agentlightning 0.3.0 keeps every rollout for ever,
  about 8 kB each, and every resource.
- ``LightningOpenTelemetry``, see ``revealing``: in agentlightning 0.3.0 the spans of the proxy hold no token, its
  adapter for them takes ids as text but not as the tuples of OpenTelemetry, and its exporter waits for a store server
  that waits for the exporter.
- ``ContextTracer``: in agentlightning 0.3.0 ``emit_reward`` finds one tracer per process, yet many rollouts run in it.
- ``without_none``: OpenTelemetry 1.45 keeps attributes that are None, as of a call with ``max_tokens=None``; the spans
  of agentlightning 0.3.0 refuse them by an exception, which the agent gets in place of its reply.
- ``OTLP_LOSES_SPANS``: in agentlightning 0.3.0 the exporter of spans keeps the endpoint it was made with, so what goes
  to a store over HTTP is lost while its rollouts succeed; a store that does not offer OTLP gets them one by one.
"""

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

# Must be set before the first import of litellm or agentops anywhere in the process, hence here and not in a function.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("AGENTOPS_LOGGING_TO_FILE", "False")
os.environ.setdefault("AGENTOPS_LOG_SESSION_REPLAY_URL", "False")
os.environ.setdefault("AGENTOPS_LOG_LEVEL", "CRITICAL")

import litellm
from agentlightning.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet
from agentlightning.emitter import emit_reward
from agentlightning.emitter.reward import find_final_reward, get_reward_value, get_rewards_from_span
from agentlightning.litagent import LitAgent
from agentlightning.llm_proxy import LightningOpenTelemetry, LightningSpanExporter, LLMProxy
from agentlightning.runner import LitAgentRunner
from agentlightning.store import InMemoryLightningStore, LightningStore, LightningStoreClient, LightningStoreServer
from agentlightning.store.base import UNSET
from agentlightning.tracer import AgentOpsTracer, DummyTracer, OtelTracer, get_active_tracer, set_active_tracer
from agentlightning.types import (
    LLM,
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Attributes,
    NamedResources,
    ProxyLLM,
    RolloutConfig,
    Span,
    SpanCoreFields,
    TraceStatus,
    Worker,
)
from agentlightning.utils.server_launcher import PythonServerLauncherArgs
from litellm.integrations.opentelemetry import OpenTelemetryConfig
from litellm.llms.anthropic.pass_through.adapters.transformation import AnthropicAdapter
from litellm.llms.custom_llm import CustomLLM, CustomLLMError
from litellm.proxy import proxy_server
from litellm.proxy.common_utils import banner
from litellm.proxy.shutdown.graceful_shutdown_manager import GracefulShutdownManager
from litellm.responses.litellm_completion_transformation.transformation import LiteLLMCompletionResponsesConfig
from litellm.types.utils import Choices, Message, ModelResponse, Usage
from litellm.utils import custom_llm_setup
from opentelemetry.sdk.trace import Event, ReadableSpan

__all__ = [
    "LLM",
    "OTLP_LOSES_SPANS",
    "UNSET",
    "AnthropicAdapter",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "CallTracer",
    "Choices",
    "ContextTracer",
    "CustomLLM",
    "CustomLLMError",
    "InMemoryLightningStore",
    "LLMProxy",
    "LightningOpenTelemetry",
    "LightningSpanExporter",
    "LightningStore",
    "LightningStoreClient",
    "LightningStoreServer",
    "LitAgent",
    "LitAgentRunner",
    "LiteLLMCompletionResponsesConfig",
    "LlmProxyTraceToTriplet",
    "Message",
    "ModelResponse",
    "NamedResources",
    "OpenTelemetryConfig",
    "ProxyLLM",
    "PythonServerLauncherArgs",
    "RolloutConfig",
    "Span",
    "SpanCoreFields",
    "TracerTraceToTriplet",
    "Usage",
    "Worker",
    "WorkerTracer",
    "allow_restart",
    "emit_reward",
    "find_final_reward",
    "forget_resources",
    "forget_rollout",
    "forget_worker",
    "get_reward_value",
    "get_rewards_from_span",
    "install_provider",
    "install_tracer",
    "set_master_key",
    "silence_litellm",
    "silence_spans",
    "without_none",
]

OTLP_LOSES_SPANS = {"otlp_traces": False}
"""To be merged into the capabilities of a store over HTTP."""
LITELLM_LOGGERS = ("LiteLLM", "LiteLLM Proxy", "LiteLLM Router")
SPAN_LOGGERS = ("opentelemetry.sdk.trace", "agentlightning.llm_proxy")

_reward_sink: ContextVar[Callable[[SpanCoreFields], None] | None] = ContextVar("reward_sink", default=None)


def silence_litellm() -> None:
    """Keeps LiteLLM off stdout, and its loggers, which may quote prompts, to critical errors in our own log."""
    banner.show_banner = _print_nothing
    proxy_server.generate_feedback_box = _print_nothing
    proxy_server.print = _print_nothing  # a module's own name comes before the builtin: sys.stdout stays untouched
    for name in LITELLM_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.CRITICAL)


def silence_spans() -> None:
    """Keeps to errors who writes the proxy's spans; a span that is missing is told of where it is missed."""
    for name in SPAN_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def without_none(span: ReadableSpan) -> ReadableSpan:
    """``span``, but for the attributes that are None."""
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_given(span.attributes),
        events=[Event(event.name, _given(event.attributes), event.timestamp) for event in span.events],
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _given(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (attributes or {}).items() if value is not None}


def allow_restart() -> None:
    """Lets a proxy of this process become healthy although an earlier one was stopped."""
    GracefulShutdownManager.reset()


def set_master_key(key: str) -> None:
    """Makes ``key`` the bearer key of the proxy that starts next."""
    os.environ["LITELLM_MASTER_KEY"] = key


def install_provider(name: str, provider: CustomLLM) -> None:
    """Lets models called ``<name>/...`` be served by ``provider``, in place of any earlier one."""
    litellm.custom_provider_map = [{"provider": name, "custom_handler": provider}]
    custom_llm_setup()


async def forget_rollout(store: InMemoryLightningStore, rollout_id: str) -> None:
    """Drops a finished rollout, its attempts and its spans from ``store``; an unknown one is none to drop."""
    this = {"rollout_id": {"exact": rollout_id}}
    labels = ["attempts", "rollouts", "span_sequence_ids", "spans"]
    async with store.collections.atomic(mode="rw", snapshot=False, labels=labels) as kept:
        for collection in (kept.spans, kept.attempts, kept.rollouts):
            await collection.delete((await collection.query(filter=this)).items)
            collection._items.pop(rollout_id, None)  # noqa: SLF001 - the tree's branch, which it leaves when it is empty
        await kept.span_sequence_ids.pop(rollout_id)
    # The store's own indexes, which it offers no way to shrink.
    store._completion_events.pop(rollout_id, None)  # noqa: SLF001
    store._start_time_by_rollout.pop(rollout_id, None)  # noqa: SLF001
    store._running_rollout_ids.discard(rollout_id)  # noqa: SLF001
    store._total_span_bytes -= store._span_bytes_by_rollout.pop(rollout_id, 0)  # noqa: SLF001


async def forget_resources(store: InMemoryLightningStore, resources_id: str) -> None:
    """Drops resources that no rollout needs any more; unknown ones are none to drop."""
    async with store.collections.atomic(mode="rw", snapshot=False, labels=["resources"]) as kept:
        found = await kept.resources.query(filter={"resources_id": {"exact": resources_id}})
        await kept.resources.delete(found.items)


async def forget_worker(store: InMemoryLightningStore, worker_id: str) -> None:
    """Drops a worker that is gone; an unknown one is none to drop."""
    async with store.collections.atomic(mode="rw", snapshot=False, labels=["workers"]) as kept:
        await kept.workers.delete((await kept.workers.query(filter={"worker_id": {"exact": worker_id}})).items)


class _TellsRewards:
    """What makes a tracer hand each emitted reward to the rollout in whose context it was emitted."""

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """The span; one that is a reward's has gone to the sink of ``send_rewards_to``.

        Raises:
            RuntimeError: a reward is emitted where no rollout runs, for instance in a thread the agent started itself.
        """
        span = super().create_span(name, attributes, timestamp, status)  # type: ignore[misc]  # of the tracer beside it
        if get_reward_value(span) is not None:
            sink = _reward_sink.get()
            if sink is None:
                raise RuntimeError(
                    "emit_reward was called where no rollout runs. In a thread of your own, start it with "
                    "contextvars.copy_context().run, or return the reward from the agent."
                )
            sink(span)
        return span

    def send_rewards_to(self, sink: Callable[[SpanCoreFields], None]) -> None:
        """Sends the spans of the rewards emitted in this context from now on, and in tasks begun in it, to ``sink``.

        For contexts that one rollout has to itself: there is no way back.
        """
        _reward_sink.set(sink)


class ContextTracer(_TellsRewards, DummyTracer):  # type: ignore[misc]  # Agent-lightning's classes are Any here
    """Traces nothing: the tracer of many rollouts in one process."""


class WorkerTracer(_TellsRewards, OtelTracer):  # type: ignore[misc]
    """Agent-lightning's OpenTelemetry tracer, whose spans go to the store: of one rollout at a time."""


class CallTracer(_TellsRewards, AgentOpsTracer):  # type: ignore[misc]
    """Agent-lightning's AgentOps tracer, whose spans also tell the calls of the model; the service is not told."""

    def instrument(self, worker_id: int) -> None:
        """As Agent-lightning does, which warns of every library that is not installed."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().instrument(worker_id)


def install_tracer() -> ContextTracer:
    """The process's context-aware tracer, made active once.

    Raises:
        RuntimeError: another kind of tracer is active in this process.
    """
    active = get_active_tracer()
    if isinstance(active, ContextTracer):
        return active
    if active is not None:
        raise RuntimeError(
            f"agentlightning's active tracer is a {type(active).__name__}; inline runners need their own. Call "
            "agentlightning.tracer.clear_active_tracer() before the run starts."
        )
    tracer = ContextTracer()
    set_active_tracer(tracer)
    return tracer


def _print_nothing(*_: Any, **__: Any) -> None:
    return
