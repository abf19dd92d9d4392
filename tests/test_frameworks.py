"""Whatever the agent is written in, what is sampled, stored and trained is the same, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
from processes import BATCHES, Child, fixture_d, run_child
from trained_turns import captured_turns, trained_turns

from orchestrator.testing import first_difference, outcome_of_run

CLIENTS = (
    "openai_clients:synchronous",
    "openai_clients:sharing",
    "openai_clients:streaming",
    "litellm_client:synchronous",
    "litellm_client:asynchronous",
    "plain_http:agent",
    "agents_sdk:agent",
    "agents_sdk:streaming",
    "agents_sdk:synchronous",
    "agents_responses:plain",
)
"""Beside ``letters:agent``, which is the plain OpenAI SDK with a client for each rollout."""

HELLO = ("recipe=hello", "max_batches=1")


@pytest.mark.parametrize("agent", CLIENTS)
def test_the_same_conversation_trains_the_same_weights_whichever_client_leads_it(
    agent: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    """Three batches of two turns a rollout: rollouts, datums and weights are those of the plain asynchronous client."""
    child = fixture_d(tmp_path, f"agent={agent}")
    assert run_child(child) == 0, child.output
    assert first_difference(uninterrupted, outcome_of_run(child.log_path)) is None
    for batch in range(len(BATCHES)):
        captured = captured_turns(child.log_path, batch)
        assert captured.total() > 0
        assert trained_turns(child.log_path, batch) == captured


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a batch of the recipe ``hello`` comes to with its own agent, over the chat route."""
    child = Child(HELLO, tmp_path_factory.mktemp("hello"))
    assert run_child(child) == 0, child.output
    return outcome_of_run(child.log_path)


@pytest.mark.parametrize("agent", ["agents_responses:hello", "agents_responses:hello_streaming"])
def test_the_responses_route_trains_the_weights_that_the_chat_route_does(
    agent: str, hello: dict[str, Any], tmp_path: Path
) -> None:
    """The Agents SDK as it comes uses responses; it raises where a reply is cut, which those of ``letters`` are."""
    child = Child((*HELLO, f"agent={agent}"), tmp_path)
    assert run_child(child) == 0, child.output
    assert first_difference(hello, outcome_of_run(child.log_path)) is None
