"""The key of a run's store: from the environment, or a file of the run directory that only its owner can read."""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from orchestrator.disk import Disk
from orchestrator.errors import ConfigError
from orchestrator.journal.durable import write_durably

KEY_VARIABLE = "ORCHESTRATOR_STORE_KEY"
KEY_FILE = "store.key"
MIN_KEY_CHARACTERS = 16


def run_key(log_path: Path, *, disk: Disk, environ: Mapping[str, str] = os.environ) -> str:
    """The key that a run asks its workers for: the variable's, else the file's, which is made where it is missing.

    It is the same after a resume, so that workers which live through the run's death find it again.

    Raises:
        ConfigError: the variable's key is too short to be one.
        JournalWriteError: the file cannot be written.
    """
    path = log_path / KEY_FILE
    key = environ.get(KEY_VARIABLE) or (path.read_text().strip() if path.exists() else "")
    if not key:
        key = secrets.token_hex(24)
        write_durably(path, f"{key}\n".encode(), disk=disk)
    return _checked(key, KEY_VARIABLE if environ.get(KEY_VARIABLE) else str(path))


def worker_key(key_file: str | None, *, environ: Mapping[str, str] = os.environ) -> str:
    """The key that a worker on any machine shows.

    Raises:
        ConfigError: there is none.
    """
    if key_file is not None:
        try:
            return _checked(Path(key_file).read_text().strip(), f"key_file={key_file}")
        except OSError as error:
            raise ConfigError(f"key_file={key_file}: cannot be read ({error.strerror})") from error
    key = environ.get(KEY_VARIABLE)
    if not key:
        raise ConfigError(
            f"{KEY_VARIABLE} is not set: set it to the key of the run, which {KEY_FILE} in its run directory holds, or "
            f"give key_file=LOG_PATH/{KEY_FILE} where this machine sees that directory"
        )
    return _checked(key, KEY_VARIABLE)


def _checked(key: str, where: str) -> str:
    if len(key) < MIN_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
        raise ConfigError(f"{where}: expected a key of at least {MIN_KEY_CHARACTERS} printable ASCII characters")
    return key
