"""Where the embedded backend keeps what it saves, under the run directory."""

from pathlib import Path

LOCAL_DIRECTORY = "local"
"""Its checkpoints."""
BASE_DIRECTORY = f"{LOCAL_DIRECTORY}/base"
"""The built-in model that these belong to."""


def saved_at(path: str, log_path: Path) -> str:
    """By which another run finds what the run in ``log_path`` saved at ``path``: an embedded one's is a directory."""
    name = path.removeprefix("local://")
    return path if name == path else str(log_path / LOCAL_DIRECTORY / name)
