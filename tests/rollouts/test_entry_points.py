"""Laws of ``module:attribute``: what is found, and what is said when nothing is."""

from pathlib import Path

import pytest

from orchestrator.errors import EXIT_USAGE, ConfigError
from orchestrator.rollouts.entry_points import load_attribute


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A module of the current directory, under a name no other test has imported."""
    name = f"user_code_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text("class Solver:\n    play = 7\n\ndef solve():\n    return 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # undone after the test, with what load_attribute adds
    return name


def test_modules_of_the_current_directory_are_found(module: str) -> None:
    assert load_attribute(f"{module}:solve", "agent")() == 1
    assert load_attribute(f"{module}:Solver.play", "agent") == 7


def test_a_missing_attribute_is_answered_with_close_ones(module: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^agent={module}:sovle: .*no attribute 'sovle'; did you mean solve"
    ) as caught:
        load_attribute(f"{module}:sovle", "agent")
    assert caught.value.exit_code == EXIT_USAGE


def test_a_missing_module_is_answered_with_close_ones(module: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no module '{module}x'; did you mean {module}"):
        load_attribute(f"{module}x:solve", "agent")


def test_a_module_that_lacks_something_of_its_own_is_not_called_missing(module: str) -> None:
    Path(f"{module}_2.py").write_text("import no_such_dependency\n")
    with pytest.raises(
        ConfigError, match=f"importing {module}_2 failed with ModuleNotFoundError: .*no_such_dependency"
    ):
        load_attribute(f"{module}_2:solve", "agent")


def test_a_module_that_raises_is_named_with_its_error(module: str) -> None:
    Path(f"{module}_3.py").write_text("raise RuntimeError('no key')\n")
    with pytest.raises(ConfigError, match="RuntimeError: no key"):
        load_attribute(f"{module}_3:solve", "train_dataset")


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("solve", "expected module:attribute"),
        ("agents.solve", "did you mean agents:solve?"),
        ("agents.py:solve", "did you mean agents:solve?"),
        ("./sub/agents.py", "did you mean sub.agents:ATTRIBUTE?"),
        ("agents:", "expected module:attribute"),
        (":solve", "expected module:attribute"),
    ],
)
def test_a_wrong_spelling_is_answered_with_the_right_one(spec: str, advice: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_attribute(spec, "agent")
    assert advice in str(caught.value)
