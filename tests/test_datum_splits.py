"""A run's metric rows tell how often a prompt did not extend the turn before it, and every sampled token is trained."""

from pathlib import Path
from typing import Any

from processes import Child, fixture_d, run_child

from orchestrator.testing import outcome_of_run
from orchestrator.training.datums import load


def batch_0(log_path: Path) -> tuple[dict[str, Any], float]:
    """Its metric row, and how many action tokens its datums hold."""
    row = outcome_of_run(log_path)["metrics"][0]
    return row, sum(sum(datum.loss_fn_inputs["mask"].tolist()) for datum in load(log_path, 0).datums)


def test_two_turns_are_one_datum_where_the_renderer_extends(uninterrupted_child: Child) -> None:
    row, action_tokens = batch_0(uninterrupted_child.log_path)
    assert row["rollout/datum_splits"] == 0
    assert row["rollout/datums"] == 4
    assert action_tokens == row["rollout/sampled_tokens"] > 0


def test_two_turns_are_two_datums_where_the_template_is_rendered_anew(tmp_path: Path) -> None:
    child = fixture_d(tmp_path, "renderer_name=qwen3_disable_thinking", "max_batches=1")
    assert run_child(child) == 0, child.output
    row, action_tokens = batch_0(child.log_path)
    assert row["rollout/datum_splits"] == 4
    assert row["rollout/datums"] == 8
    assert action_tokens == row["rollout/sampled_tokens"] > 0
