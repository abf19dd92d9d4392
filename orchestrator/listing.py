"""What the recipes command tells: each recipe, what it shows, what it needs and how it is run."""

import textwrap
from collections.abc import Iterator
from typing import Any

from orchestrator.config import DEFAULT_RECIPE
from orchestrator.settings import read_recipe, recipe_names


def recipe_objects() -> Iterator[dict[str, Any]]:
    """Each recipe as JSON values: name, default, description, needs (what it is, by field), command, file."""
    for name in recipe_names():
        recipe = read_recipe(name)
        words = [] if name == DEFAULT_RECIPE else [f"recipe={name}"]
        command = " ".join(["python -m orchestrator run", *words, *(f"{field}=..." for field in recipe.needs)])
        yield {
            "name": name,
            "default": name == DEFAULT_RECIPE,
            "description": recipe.description,
            "needs": dict(recipe.needs),
            "command": command,
            "file": f"orchestrator/recipes/{name}.py",
        }


def recipe_lines() -> Iterator[str]:
    """Each recipe in words."""
    for recipe in recipe_objects():
        yield recipe["name"]
        yield from textwrap.wrap(recipe["description"], 100, initial_indent="  ", subsequent_indent="  ")
        for field, what in recipe["needs"].items():
            yield from textwrap.wrap(f"needs {field}: {what}", 100, initial_indent="  ", subsequent_indent="  ")
        yield f"  $ {recipe['command']}"
