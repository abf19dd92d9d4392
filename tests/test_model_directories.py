"""A user's own model directory, tasks file and agent, trained with an adapter, killed and resumed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from backends.model_directories import make_llama, make_qwen3
from processes import Child, fixture_d, run_child

from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt, outcome_of_run


@pytest.mark.parametrize("make", [make_llama, make_qwen3])
def test_a_model_directory_trains_and_resumes_like_any_model(make: Callable[[Path], Path], tmp_path: Path) -> None:
    """Killed on entering TrainStep of the second batch: the first one's step is redone on the restored adapter."""
    model = make(tmp_path / "model")
    (tmp_path / "tasks.jsonl").write_text("".join(f'"t{index}"\n' for index in range(4)))

    def child(name: str, observer: KillAt) -> Child:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        given = fixture_d(
            folder,
            "backend=local",
            f"model_name={model}",
            "renderer_name=qwen3_instruct",
            "lora_rank=4",
            f"train_file={tmp_path / 'tasks.jsonl'}",
            "save_every=0",
            observer=observer,
        )
        return Child(tuple(s for s in given.settings if not s.startswith("train_dataset=")), folder, observer)

    assert run_child(child("undisturbed", KillAt("never"))) == 0
    undisturbed = outcome_of_run(tmp_path / "undisturbed" / "run")
    assert [undisturbed["results"][batch][State.TRAIN_STEP]["optim_steps"] for batch in (0, 1)] == [1, 1]
    weights = {path: sha for path, sha in undisturbed["files"].items() if path.endswith("model.safetensors")}
    assert len(set(weights.values())) > 1, "nothing was trained"

    kill = KillAt("append:after:state_entered", len(CYCLE) + CYCLE.index(State.TRAIN_STEP))
    assert run_child(child("killed", kill)) == -9
    assert run_child(child("killed", KillAt("never"))) == 0
    assert outcome_of_run(tmp_path / "killed" / "run") == undisturbed
