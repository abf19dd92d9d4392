"""The benchmark's format: how answers are compared, what a run of it needs, and that it trains on such a file."""

import json
from pathlib import Path

import pytest
from processes import run_command

from orchestrator.cli import main
from orchestrator.recipes.gsm8k import last_number, reward


@pytest.mark.parametrize(
    ("reply", "answer", "earned"),
    [
        ("3 and 4 are 7.\n#### 7", "3+4=<<3+4=7>>7\n#### 7", 1.0),
        ("it costs $1,250.00", "... #### 1250", 1.0),
        ("#### -3", "#### -3", 1.0),
        ("#### 8", "#### 7", 0.1),
        ("8", "#### 7", 0.0),
        ("7 or 8", "#### 7", 0.0),
        ("no idea", "#### 7", 0.0),
    ],
)
def test_the_last_number_counts_by_its_value(reply: str, answer: str, earned: float) -> None:
    assert reward(reply, answer) == earned


def test_a_line_without_a_number_is_no_line_of_the_benchmark() -> None:
    assert last_number("none") is None
    with pytest.raises(ValueError, match="expected a number"):
        reward("7", "seven")


def test_without_a_file_it_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "recipe=gsm8k"]) == 2
    told = capsys.readouterr().err
    assert "recipe=gsm8k: train_file is not given; add train_file=..., JSON lines" in told
    assert "#### 42" in told


def test_it_trains_on_a_file_of_that_form(tmp_path: Path) -> None:
    lines = [{"question": f"{n} and 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(1, 9)]
    (tmp_path / "train.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "digits.py").write_text(
        "def demonstrations():\n"
        "    return [[{'role': 'user', 'content': 'q'}, {'role': 'assistant', 'content': f'#### {digit}'}]\n"
        "            for _ in range(4) for digit in range(2, 10)]\n"
    )
    settings = "train_file=train.jsonl val_fraction=0.25 backend=local model_name=tiny lora_rank=0 batch_size=3"
    warm = "local.warm_start=digits:demonstrations local.warm_start_steps=80"
    small = "max_batches=2 max_tokens=12 learning_rate=1e-3 log_path=run"
    code, _, told = run_command(tmp_path, "run", "recipe=gsm8k", *settings.split(), *warm.split(), *small.split())
    assert code == 0, told
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert rows[0]["rollout/reward_mean"] >= 0.1
    assert sum(row.get("train/optim_steps", 0) for row in rows) > 0
