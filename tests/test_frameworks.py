"""Whatever the agent is written in, what is sampled, stored and trained is the same, bit for bit."""

from pathlib import Path
from typing import Any

import pytest
from processes import BATCHES, fixture_d, run_child
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
)
"""Beside ``letters:agent``, which is the plain OpenAI SDK with a client for each rollout."""


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
