"""What holds for every recipe: it loads as a run, by name, offline."""

import pytest

from orchestrator.config import flatten
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.dataset import TaskBatches, load_tasks
from orchestrator.rollouts.entry_points import load_attribute
from orchestrator.settings import RECIPES as FOLDER
from orchestrator.settings import load_config, recipe_values

RECIPES = sorted(path.stem for path in FOLDER.glob("*.toml"))


def test_hello_and_the_default_are_recipes() -> None:
    assert {"guess_number", "hello"} <= set(RECIPES)
    assert load_config([], environ={}).recipe == "guess_number"


@pytest.mark.parametrize("recipe", RECIPES)
class TestEveryRecipe:
    def test_every_override_reaches_the_configuration(self, recipe: str) -> None:
        values = flatten(load_config([f"recipe={recipe}"], environ={}))
        overrides = recipe_values(recipe)
        assert overrides
        assert {name: values[name] for name in overrides} == overrides

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
            roles = [message["role"] for message in transcript]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert len(roles) >= 2
            assert all(len(message["content"]) == 1 for message in transcript if message["role"] == "assistant")

    def test_its_promise_is_written_down(self, recipe: str) -> None:
        module = load_attribute(f"orchestrator.recipes.{recipe}:__doc__", "recipe")
        assert "warm start knew" in module
        assert "reinforcement adds" in module
