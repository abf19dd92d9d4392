"""Weights & Biases: one run there for one run here, online or, with WANDB_MODE=offline, in LOG_PATH/wandb."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INIT_SECONDS = 20.0
FINISH_SECONDS = 8.0
"""Less than the end of a process waits for its trackers; W&B's own exit hook keeps to it as well."""


class WandbRun:
    """The run of a fixed id; only the rows and the configuration go out, no console, code, machine or command line.

    Not through tinker-cookbook's logger: it starts a new W&B run each time, captures the console, and holds each row
    back until the next one.
    """

    def __init__(
        self,
        project: str,
        name: str,
        run_id: str,
        log_path: Path,
        config: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Opens the run, or makes it, and sends what of ``rows`` it does not have.

        Online, W&B says which steps it has. Offline it is not asked, and when two offline runs of one id are uploaded
        the second replaces the first: so each process writes a whole one, with all rows, and removes those before it.
        """
        import wandb  # start-up time, and an optional dependency

        settings = quiet_settings()
        offline = is_offline()
        self._run = wandb.init(
            project=project,
            id=run_id,
            name=name,
            dir=str(log_path),
            config=dict(config),
            allow_val_change=True,
            resume=None if offline else "allow",
            reinit="create_new",
            settings=settings,
        )
        for row in rows:
            self.write(row)
        if offline:
            own = Path(self._run.settings.sync_dir).resolve()
            for path in (log_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"):
                if path.parent.resolve() != own:
                    shutil.rmtree(path.parent)

    def write(self, row: Mapping[str, Any]) -> None:
        """Sends the row, unless W&B has its step."""
        values = {name: value for name, value in row.items() if name != "step"}
        if row["step"] >= self._run.starting_step:
            self._run.log(values, step=row["step"], commit=True)

    def close(self) -> None:
        """Waits until W&B has the rows, FINISH_SECONDS at most."""
        self._run.finish()


def quiet_settings() -> Any:
    """Settings under which W&B takes nothing by itself, prints nothing and does not wait for ever."""
    # W&B reports its own errors to its makers, unless told not to.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb  # start-up time, and an optional dependency

    return wandb.Settings(
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def is_offline() -> bool:
    """Whether W&B is told to keep to this machine."""
    import wandb  # start-up time, and an optional dependency

    return wandb.setup(quiet_settings()).settings.mode in {"offline", "dryrun", "disabled"}


def has_credentials() -> bool:
    """Whether W&B knows a key, from the environment or an earlier login; asks nobody."""
    import wandb  # start-up time, and an optional dependency
    from wandb.sdk.lib.wbauth import authenticate_session

    host = wandb.setup(quiet_settings()).settings.base_url
    return authenticate_session(host=host, source="orchestrator", prompt=False) is not None
