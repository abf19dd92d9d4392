"""Each fix is still needed, and does what it is for: a test here that fails says which fix can go."""

import inspect
import logging
import os
import threading
from typing import Any

import agentlightning as agl
import litellm
import pytest
from agentlightning import llm_proxy
from agentlightning.tracer import base as tracer_base
from agentops import config as agentops_config
from agentops.logging import config as agentops_logging
from litellm.integrations.opentelemetry import OpenTelemetry
from litellm.litellm_core_utils import get_model_cost_map
from litellm.proxy import proxy_server
from litellm.proxy.shutdown.graceful_shutdown_manager import GracefulShutdownManager
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from pydantic import ValidationError

from orchestrator.rollouts import compat
from orchestrator.rollouts.compat import LightningStoreClient
from orchestrator.rollouts.runners.store_client import StoreClient


def test_litellm_still_reads_a_price_list_from_the_network_unless_told_not_to() -> None:
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert "LITELLM_LOCAL_MODEL_COST_MAP" in inspect.getsource(get_model_cost_map)
    assert litellm.model_cost_map_url.startswith("https://")


def test_agentops_still_writes_a_log_file_and_prints_addresses_unless_told_not_to() -> None:
    assert os.environ["AGENTOPS_LOGGING_TO_FILE"] == os.environ["AGENTOPS_LOG_SESSION_REPLAY_URL"] == "False"
    assert os.environ["AGENTOPS_LOG_LEVEL"] == "CRITICAL"
    assert "AGENTOPS_LOGGING_TO_FILE" in inspect.getsource(agentops_logging)
    assert "AGENTOPS_LOG_LEVEL" in inspect.getsource(agentops_logging)
    assert "AGENTOPS_LOG_SESSION_REPLAY_URL" in inspect.getsource(agentops_config)


def test_litellm_still_prints_when_its_proxy_starts() -> None:
    assert "show_banner()" in inspect.getsource(proxy_server.initialize)
    assert "print(" in inspect.getsource(proxy_server.ProxyConfig.load_config)


def test_litellm_still_remembers_a_shutdown_for_the_whole_process() -> None:
    GracefulShutdownManager.start_shutdown()
    assert GracefulShutdownManager.is_shutting_down()
    compat.allow_restart()
    assert not GracefulShutdownManager.is_shutting_down()


def test_the_proxy_still_takes_its_key_from_the_environment() -> None:
    assert "LITELLM_MASTER_KEY" in inspect.getsource(proxy_server)


def test_litellm_still_touches_ended_spans_and_agentlightning_still_warns_of_requests_of_no_rollout() -> None:
    assert "_end_proxy_span_from_kwargs" in inspect.getsource(OpenTelemetry)
    assert "Cannot log to store" in inspect.getsource(llm_proxy.LightningSpanExporter)
    compat.silence_spans()
    assert not logging.getLogger(llm_proxy.__name__).isEnabledFor(logging.WARNING)


def test_the_proxys_adapter_still_takes_ids_as_text_and_not_as_opentelemetry_has_them() -> None:
    def span(prompt: Any, sampled: Any) -> Any:
        attributes = {"prompt_token_ids": prompt, "response_token_ids": sampled}
        return agl.Span.from_attributes(
            rollout_id="r", attempt_id="a", sequence_id=1, name="litellm_request", attributes=attributes
        )

    adapter = compat.LlmProxyTraceToTriplet()
    assert adapter.adapt([span((1, 2), (3,))]) == []
    (triplet,) = adapter.adapt([span("[1, 2]", "[3]")])
    assert triplet.prompt["token_ids"] == [1, 2]
    assert "logprobs" not in triplet.response


def test_the_proxys_spans_still_hold_no_tokens_and_take_the_processs_tracer_provider() -> None:
    assert "set_attributes" not in vars(compat.LightningOpenTelemetry)
    assert "token_ids" not in inspect.getsource(OpenTelemetry)
    assert "skip_set_global" not in inspect.getsource(compat.LightningOpenTelemetry)


def test_agentlightnings_spans_still_refuse_attributes_that_are_none_though_opentelemetry_keeps_them() -> None:
    with TracerProvider().get_tracer(__name__).start_as_current_span("call", attributes={"asked": 1}) as span:
        span.set_attribute("max_tokens", None)
        span.add_event("asked", {"max_tokens": None})
    assert isinstance(span, ReadableSpan)
    with pytest.raises(ValidationError, match="max_tokens"):
        agl.Span.from_opentelemetry(span, rollout_id="r", attempt_id="a", sequence_id=1)
    kept = agl.Span.from_opentelemetry(compat.without_none(span), rollout_id="r", attempt_id="a", sequence_id=1)
    assert kept.attributes == {"asked": 1}
    assert [event.attributes for event in kept.events] == [{}]


def test_agentlightning_still_has_one_tracer_a_process() -> None:
    assert "global _active_tracer" in inspect.getsource(tracer_base.set_active_tracer)
    assert compat.install_tracer() is compat.install_tracer()


def test_a_reward_emitted_where_no_rollout_runs_is_an_error() -> None:
    compat.install_tracer()
    errors: list[str] = []

    def emit() -> None:
        try:
            agl.emit_reward(1.0)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=emit)  # a thread begins with an empty context
    thread.start()
    thread.join()
    assert "where no rollout runs" in errors[0]


async def test_the_store_still_keeps_finished_rollouts_unless_they_are_forgotten() -> None:
    store = compat.InMemoryLightningStore(thread_safe=True)
    rollouts = [await store.start_rollout(input=number) for number in range(2)]
    for rollout in rollouts:
        await store.add_span(
            agl.Span.from_core_fields(
                agl.emit_reward(1.0, propagate=False),
                rollout_id=rollout.rollout_id,
                attempt_id=rollout.attempt.attempt_id,
                sequence_id=1,
            )
        )
        await store.update_attempt(rollout.rollout_id, rollout.attempt.attempt_id, status="succeeded")
    assert len(await store.query_rollouts()) == 2
    await compat.forget_rollout(store, rollouts[0].rollout_id)
    await compat.forget_rollout(store, "unknown")
    assert [rollout.rollout_id for rollout in await store.query_rollouts()] == [rollouts[1].rollout_id]
    assert len(await store.query_spans(rollouts[1].rollout_id)) == 1
    assert len(store.collections.spans._items) == len(store.collections.attempts._items) == 1
    assert len(store._start_time_by_rollout) == len(store._completion_events) == len(store._span_bytes_by_rollout) == 1
    statistics = await store.statistics()
    assert (statistics["total_rollouts"], statistics["total_attempts"], statistics["total_spans"]) == (1, 1, 1)


def test_a_store_over_http_still_claims_to_take_spans_that_it_loses() -> None:
    needed = LightningStoreClient("http://127.0.0.1:1").capabilities
    assert needed["otlp_traces"], "see whether tests/rollouts/test_store_server.py passes without the fix"
    ours = StoreClient("http://127.0.0.1:1", key="k", agent="a:b").capabilities
    assert ours == {**needed, "otlp_traces": False}


async def test_the_store_keeps_resources_and_workers_until_they_are_forgotten() -> None:
    store = compat.InMemoryLightningStore(thread_safe=True)
    for name in ("old", "new"):
        await store.update_resources(name, {"main_llm": agl.LLM(endpoint="http://127.0.0.1:1", model="m")})
        await store.update_worker(name)
    assert [kept.resources_id for kept in await store.query_resources()] == ["old", "new"]
    for name in ("old", "unknown"):
        await compat.forget_resources(store, name)
        await compat.forget_worker(store, name)
    assert [kept.resources_id for kept in await store.query_resources()] == ["new"]
    assert [kept.worker_id for kept in await store.query_workers()] == ["new"]
