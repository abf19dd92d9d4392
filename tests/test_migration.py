"""Every option of the two loops that users come from has its row in the docs, and every field named there exists."""

import re
from pathlib import Path

import chz
import pytest
from tinker_cookbook.rl.train import Config as CookbookConfig

from orchestrator.config import field_drifts

DOCS = Path(__file__).parent.parent / "docs" / "migration.md"
DATASET = (
    "batch_size",
    "n_epochs",
    "train_file",
    "val_file",
    "train_dataset",
    "val_dataset",
    "train_val_split",
    "shuffle",
)
AGENT_LIGHTNING = {
    *(f"dataset_builder.{name}" for name in (*DATASET, "group_size", "seed")),
    *("learning_rate", "model_name", "renderer_name", "compute_post_kl", "lora_rank", "llm_proxy_port"),
    *("kl_penalty_coef", "kl_discount_factor", "max_tokens", "train_temperature", "eval_temperature", "top_k", "top_p"),
    *("store_address", "adapter_from_llm_proxy", "adapter_agent_match", "llm_proxy_retry_attempts", "concurrency"),
    *("loss_fn", "num_substeps", "wandb_project", "wandb_name", "log_path", "base_url", "enable_trace"),
    *("remove_constant_reward_groups", "eval_every", "save_every", "load_checkpoint_path"),
}
"""The options of examples/tinker at version 0.3.0; the example is in no package."""


def rows(heading: str) -> dict[str, tuple[str, str]]:
    """Their name, and what the table under ``heading`` says is ours and is to be known."""
    section = DOCS.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"
    ]
    assert all(len(row) == 3 for row in cells)
    found = {row[0].split("`")[1]: (row[1], row[2]) for row in cells}
    assert len(found) == len(cells), "no option has two rows"
    return found


@pytest.mark.parametrize(
    ("heading", "options"),
    [
        ("Agent-lightning's Tinker example", AGENT_LIGHTNING),
        ("tinker-cookbook", set(chz.chz_fields(CookbookConfig))),
    ],
)
def test_every_option_has_its_counterpart_or_a_reason(heading: str, options: set[str]) -> None:
    found = rows(heading)
    assert found.keys() == options
    for theirs, (ours, reason) in found.items():
        if ours == "none":
            assert len(reason) > 40, f"{theirs}: say why there is none"
        else:
            name = re.fullmatch(r"`([\w.]+)`( \[.+\])?", ours)
            assert name is not None, ours
            assert name[1] in field_drifts(), f"{theirs}: there is no field {name[1]}"


def test_every_field_named_anywhere_in_the_text_is_ours_or_theirs() -> None:
    known = {*field_drifts(), *AGENT_LIGHTNING, *chz.chz_fields(CookbookConfig), "kl_reference_config"}
    settings = re.findall(r"`([a-z_.]+)=", DOCS.read_text()) + re.findall(r"`([a-z]+_[a-z_.]+)`", DOCS.read_text())
    assert {name for name in settings if name not in known and not name.startswith("loss_fn_config.")} == {
        "importance_sampling",
        "drop_member",
        "tinker_cookbook.rl.train",
        "trace_events.jsonl",
    }
