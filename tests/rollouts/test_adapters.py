"""Laws of the adapters: what the spans tell is what was sampled, or it is not trained on."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import fixture_d, fork_context, run_child, wait_for
from rollouts.traffic import GROUP_SIZE, POLICY_VERSION, Way, name_of, play_into, trace_into

from orchestrator.chaos.children import start_process
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.attempts import AttemptResult
from orchestrator.rollouts.compat import InMemoryLightningStore, Span
from orchestrator.rollouts.outcomes import Outcome, StoredRollout, Turn
from orchestrator.rollouts.trajectories import form_training_batch
from orchestrator.settings import load_config
from orchestrator.testing import KillAt, outcome_of_run

WAYS = [(adapter, over_http) for adapter in ("capture", "tracer", "proxy") for over_http in (False, True)]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> dict[Way, list[StoredRollout]]:
    """What each way of reading stores of the same traffic, by adapter and whether its store is reached over HTTP."""
    folder = tmp_path_factory.mktemp("traffic")
    context = fork_context()
    orders, worker = context.Pipe()

    def start(target: Any, *arguments: Any) -> Any:
        return start_process(target, folder, *arguments, context=context, daemon=True)

    codes = []
    for ways in ([way for way in WAYS if way[0] != "tracer"], [("tracer", False)], [("tracer", True)]):
        elsewhere = ways == [("tracer", True)]
        children = [start(play_into, ways, worker if elsewhere else None)]
        if elsewhere:  # than in the process of the store server, whose requests the tracer would take for the agent's
            children.append(start(trace_into, orders))
        codes += [wait_for(child) for child in children]
    printed = {path.name: path.read_text()[-3000:] for path in folder.glob("*.txt")}
    assert set(codes) == {0}, printed
    assert "agentops.ai" not in str(printed)
    return {
        way: [StoredRollout.from_json(line) for line in (folder / f"{name_of(*way)}.jsonl").read_text().splitlines()]
        for way in WAYS
    }


@pytest.mark.parametrize("way", WAYS[1:])
def test_every_adapter_stores_the_same_of_the_same_traffic(traffic: Any, way: Way) -> None:
    expected = traffic[WAYS[0]][:GROUP_SIZE]
    assert traffic[way][:GROUP_SIZE] == expected
    assert {rollout.outcome for rollout in expected} == {Outcome.SUCCEEDED}
    turns = [turn for rollout in expected for turn in rollout.turns]
    assert len(turns) == 2 * GROUP_SIZE
    assert {turn.stop_reason for turn in turns} == {"stop", "length"}
    assert {turn.policy_version for turn in turns} == {POLICY_VERSION}


@pytest.mark.parametrize("way", WAYS[2:])
def test_a_reply_without_ids_or_with_too_few_logprobs_is_invalid_counted_and_never_trained(
    traffic: Any, way: Way
) -> None:
    rollouts = traffic[way]
    tampered = rollouts[GROUP_SIZE : 3 * GROUP_SIZE]
    assert Counter(rollout.outcome for rollout in tampered) == {Outcome.INVALID: 2 * GROUP_SIZE}
    for rollout in tampered[GROUP_SIZE:]:
        assert "2 lack token ids or logprobs in their span, or have unequal numbers of them" in str(rollout.error)
    batch = form_training_batch(
        rollouts[: 3 * GROUP_SIZE], policy_version=POLICY_VERSION, group_size=GROUP_SIZE, remove_constant=False
    )
    assert batch.metrics["rollout/invalid"] == 2 * GROUP_SIZE
    assert batch.counts.kept == 1
    assert batch.counts.failed == 2


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_the_tracer_does_not_see_is_told_of_and_others_are_read_as_any(traffic: Any, way: Way) -> None:
    """LiteLLM's client posts past the method of OpenAI's that the tracer wraps."""
    rollouts = traffic[way][-GROUP_SIZE:]
    if way[0] == "tracer":
        assert {rollout.error for rollout in rollouts} == {
            "adapter=tracer: of 2 turns, 2 have no span that tells their tokens; adapter=capture needs no spans"
        }
    else:
        assert rollouts == traffic[WAYS[0]][-GROUP_SIZE:]
        assert {rollout.outcome for rollout in rollouts} == {Outcome.SUCCEEDED}


def test_a_run_that_reads_the_proxys_spans_is_killed_resumed_and_comes_to_the_same(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    killed = fixture_d(tmp_path, "adapter=proxy", "gateway=llm_proxy", observer=KillAt("request:before:sample", 13))
    assert run_child(killed) == -9
    assert run_child(fixture_d(tmp_path, "adapter=proxy", "gateway=llm_proxy")) == 0, killed.output
    assert outcome_of_run(tmp_path / "run") == uninterrupted


TURN = Turn((1, 2), (3, 4), (-0.5, -0.25), 0, "stop")
RESULT = AttemptResult(Outcome.SUCCEEDED, 1.0, (TURN, TURN), None)


def call_span(rollout: Any, number: int, **changed: Any) -> Any:
    """The span that the proxy leaves of a call that sampled ``TURN``."""
    told = {
        "gen_ai.response.id": f"chatcmpl-{number}",
        "prompt_token_ids": "[1, 2]",
        "response_token_ids": "[3, 4]",
        "logprobs.content": '[{"logprob": -0.5}, {"logprob": -0.25}]',
        "gen_ai.openai.system_fingerprint": "policy-version-0",
        "gen_ai.completion.0.finish_reason": "stop",
    }
    return Span.from_attributes(
        rollout_id=rollout.rollout_id,
        attempt_id=rollout.attempt.attempt_id,
        sequence_id=number,
        name="litellm_request",
        attributes=told | changed,
    )


class Store(InMemoryLightningStore):  # type: ignore[misc]  # Any to mypy
    """Tells when it was first asked for spans."""

    def __init__(self) -> None:
        super().__init__(thread_safe=True)
        self.asked = asyncio.Event()

    async def query_spans(self, *args: Any, **kwargs: Any) -> Any:
        spans = await super().query_spans(*args, **kwargs)
        self.asked.set()
        return spans


@pytest.fixture
async def store() -> Store:
    return Store()


async def adapt(store: Any, rollout: Any, *, patience_seconds: float) -> AttemptResult:
    spans = SpanTurns("proxy", store, patience_seconds=patience_seconds)
    return await spans.adapt(rollout.rollout_id, rollout.attempt.attempt_id, RESULT)


async def test_a_span_that_comes_after_its_reply_is_waited_for(store: Any) -> None:
    rollout = await store.start_rollout(input="t")
    await store.add_span(call_span(rollout, 1))
    adapting = asyncio.create_task(adapt(store, rollout, patience_seconds=20))
    await store.asked.wait()
    await store.add_span(call_span(rollout, 2))
    assert await adapting == RESULT


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (None, "1 have no span that tells their tokens"),
        ({"prompt_token_ids": "[1, 9]"}, "1 are not what was sampled"),
        ({"gen_ai.openai.system_fingerprint": "policy-version-1"}, "1 are not what was sampled"),
        ({"gen_ai.openai.system_fingerprint": "fp_1"}, "1 are not what was sampled"),
        ({"gen_ai.completion.0.finish_reason": "length"}, "1 are not what was sampled"),
        ({"logprobs.content": '[{"logprob": -0.5}, {"logprob": -0.26}]'}, "1 are not what was sampled"),
        ({"logprobs.content": '[{"logprob": -0.5}]'}, "1 lack token ids or logprobs"),
    ],
)
async def test_a_span_that_never_comes_or_tells_something_else_makes_the_rollout_invalid(
    store: Any, changed: dict[str, Any] | None, problem: str
) -> None:
    rollout = await store.start_rollout(input="t")
    await store.add_span(call_span(rollout, 1))
    if changed is not None:
        await store.add_span(call_span(rollout, 2, **changed))
    result = await adapt(store, rollout, patience_seconds=0.02)
    assert result.outcome is Outcome.INVALID
    assert problem in str(result.error)
    assert result.turns == RESULT.turns, "the tokens were sampled and stay accounted for"


async def test_a_call_that_was_refused_and_a_reply_that_was_told_twice_spoil_nothing(store: Any) -> None:
    """A refused call's span has no response. A client that lost a reply asks again, and gets it under another id."""
    rollout = await store.start_rollout(input="t")
    refused = call_span(rollout, 3)
    for name in [name for name in refused.attributes if name.startswith("gen_ai.")]:
        del refused.attributes[name]
    for span in (call_span(rollout, 1), call_span(rollout, 2), refused, call_span(rollout, 4)):
        await store.add_span(span)
    assert await adapt(store, rollout, patience_seconds=0.02) == RESULT


def test_a_tracer_is_refused_where_many_rollouts_share_a_process() -> None:
    settings = ["recipe=none", "agent=letters:agent", "adapter=tracer"]
    with pytest.raises(ConfigError, match=r"adapter=tracer.*add placement=processes"):
        load_config(settings)
    assert load_config([*settings, "placement=processes"]).adapter == "tracer"
    assert Config().adapter == "capture"
