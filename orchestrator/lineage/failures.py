"""How a command on a run's past tells that the backend failed it: nothing of the run is at stake."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tinker

from orchestrator.errors import BackendError
from orchestrator.telling import told


@contextmanager
def failures_told(log_path: Path) -> Iterator[None]:
    """Tells what the SDK raises inside the block.

    Raises:
        BackendError: the backend refused or lost a request.
    """
    try:
        yield
    except tinker.TinkerError as error:
        raise BackendError(
            f"{log_path}: the backend failed with {told(error)}. Nothing of the run was changed; the same command "
            "tries again"
        ) from error
