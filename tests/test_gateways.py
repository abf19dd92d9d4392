"""What a run stores does not depend on which gateway its agents call, nor on where that listens."""

import socket
from pathlib import Path
from typing import Any

import pytest
from processes import fixture_d, run_child

from orchestrator.errors import ConfigError
from orchestrator.settings import load_config
from orchestrator.testing import outcome_of_run


def test_agents_behind_the_other_gateway_play_the_same_rollouts(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    child = fixture_d(tmp_path, "gateway=llm_proxy")
    assert run_child(child) == 0, child.output
    assert outcome_of_run(child.log_path) == uninterrupted


def test_agents_that_are_told_another_address_play_the_same_rollouts(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    listening = ("gateway_host=0.0.0.0", f"gateway_port={port}", f"gateway_address=http://localhost:{port}")
    child = fixture_d(tmp_path, *listening)
    assert run_child(child) == 0, child.output
    assert outcome_of_run(child.log_path) == uninterrupted


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("gateway_host=0.0.0.0",), "nobody can call that; set gateway_address"),
        (("gateway_address=10.0.0.5:4000",), "expected scheme, host and port only"),
        (("gateway_address=http://10.0.0.5/v1",), "expected scheme, host and port only"),
        (("gateway=nginx",), "expected one of slim, llm_proxy"),
    ],
)
def test_a_gateway_that_no_agent_could_call_is_refused(settings: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config(["recipe=none", "agent=letters:spell", *settings], environ={})


def test_a_gateway_address_with_a_password_is_refused_without_telling_it() -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(
            ["recipe=none", "agent=letters:spell", "gateway_address=http://user:pass-word@10.0.0.5"], environ={}
        )
    assert "gateway_address" in str(refused.value)
    assert "pass-word" not in str(refused.value)
