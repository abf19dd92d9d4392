"""The init command: a small project that trains as it stands, to have its pieces replaced one after the other."""

from pathlib import Path

from orchestrator.errors import ConfigError

TEMPLATE = Path(__file__).parent / "template"
FILES = ("agent.py", "tasks.jsonl", "val.jsonl", "run.toml", "test_agent.py", "README.md")


def make_project(folder: Path) -> list[str]:
    """Writes the project into ``folder``, which is made where missing, and returns what to do next, a line each.

    Raises:
        ConfigError: there is something in ``folder``, or it cannot be written.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found = "a file of that name" if not folder.is_dir() else f"{_some(folder)}"
            raise ConfigError(
                f"{folder}: there is {found} already, and nothing is overwritten; give a new folder, e.g. "
                f"`python -m orchestrator init {folder}_2`"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            text = (TEMPLATE / name).read_text(encoding="utf-8")
            # "x": what appears between the look and the write is not overwritten either.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text.replace("{name}", folder.resolve().name) if name == "README.md" else text)
    except OSError as error:
        raise ConfigError(
            f"{folder}: the project cannot be written there ({error.strerror}); give another folder"
        ) from (error)
    return [
        f"{folder}: {', '.join(FILES)}",
        "train it:",
        f"  cd {folder}",
        "  python -m orchestrator run config=run.toml",
        "then replace the agent, its tasks and the model: README.md there says where",
    ]


def _some(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
