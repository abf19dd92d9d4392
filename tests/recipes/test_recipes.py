"""What holds for every recipe: it loads as a run, by name, offline, and trains."""

import json
from pathlib import Path

import pytest
from processes import run_command

from orchestrator.cli import main
from orchestrator.config import flatten
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.dataset import TaskBatches, load_tasks
from orchestrator.rollouts.entry_points import load_attribute
from orchestrator.settings import load_config, read_recipe, recipe_names

RECIPES = recipe_names()


EMBEDDED = [name for name in RECIPES if not read_recipe(name).needs]
"""Those that run as they are, on the built-in model."""


def test_hello_and_the_default_are_recipes() -> None:
    assert RECIPES[0] == "guess_number"
    assert {"arithmetic_tool", "gsm8k", "hello", "twenty_questions"} <= set(RECIPES)
    assert load_config([], environ={}).recipe == "guess_number"


def test_no_two_recipes_share_a_run_directory() -> None:
    paths = [read_recipe(name).values.get("log_path", "runs/default") for name in RECIPES]
    assert len(set(paths)) == len(paths)


def test_the_recipes_are_listed_with_what_they_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [recipe["name"] for recipe in listed] == RECIPES
    assert all(recipe["description"].endswith(".") for recipe in listed)
    assert main(["recipes"]) == 0
    told = capsys.readouterr().out
    for recipe in listed:
        assert f"\n  $ {recipe['command']}\n" in told


@pytest.mark.parametrize("recipe", EMBEDDED)
def test_it_trains_for_two_batches(recipe: str, tmp_path: Path) -> None:
    short = ("max_batches=2", "group_size=4", "local.warm_start_steps=100", "log_path=run")
    code, _, told = run_command(tmp_path, "run", f"recipe={recipe}", *short)
    assert code == 0, told
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert sum(row.get("train/optim_steps", 0) for row in rows) > 0
    assert sum(row.get("rollout/succeeded", 0) for row in rows[:2]) == sum(
        len(file.read_text().splitlines()) for file in (tmp_path / "run/rollouts").glob("*.train.jsonl")
    )


@pytest.mark.parametrize("recipe", EMBEDDED)
class TestEveryRecipe:
    def test_every_override_reaches_the_configuration(self, recipe: str) -> None:
        values = flatten(load_config([f"recipe={recipe}"], environ={}))
        overrides = read_recipe(recipe).values
        assert overrides
        told = {name: list(value) if isinstance(value, tuple) else value for name, value in overrides.items()}
        assert {name: values[name] for name in overrides} == told

    def test_the_command_line_wins_over_the_recipe(self, recipe: str) -> None:
        config = load_config([f"recipe={recipe}", "group_size=3", "learning_rate=0.5"], environ={})
        assert (config.group_size, config.learning_rate) == (3, 0.5)

    def test_its_agent_is_one_and_its_tasks_fill_its_batches(self, recipe: str) -> None:
        config = load_config([f"recipe={recipe}"], environ={})
        assert load_agent(config.agent or "").is_async()
        tasks = load_tasks(config)
        batches = TaskBatches(tasks.train, batch_size=config.batch_size, seed=config.seed, n_epochs=config.n_epochs)
        assert batches.num_batches == config.n_epochs
        assert sorted(index for index, _ in batches.batch(0)) == list(range(len(tasks.train)))
        assert tasks.val

    def test_its_demonstrations_are_conversations_and_the_same_at_every_call(self, recipe: str) -> None:
        target = load_config([f"recipe={recipe}"], environ={}).local.warm_start
        make = load_attribute(target or "", "local.warm_start")
        transcripts = make()
        assert transcripts == make()
        for transcript in transcripts:
            messages = transcript["messages"] if isinstance(transcript, dict) else transcript
            roles = [message["role"].replace("tool", "user") for message in messages]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert len(roles) >= 2

    def test_its_promise_is_written_down(self, recipe: str) -> None:
        module = load_attribute(f"orchestrator.recipes.{recipe}:__doc__", "recipe")
        assert "warm start knew" in module
        assert "reinforcement adds" in module
