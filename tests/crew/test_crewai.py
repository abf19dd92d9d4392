"""A crew of CrewAI, in the Python environment that CREW_PYTHON names, is trained like any agent; ``make crewai``."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import AGENTS, Child, fixture_d, run_child
from trained_turns import captured_turns, trained_turns

from orchestrator.testing import KillAt, Observer, first_difference, outcome_of_run, watch_nothing

NUM_BATCHES = 2


@pytest.fixture(scope="module")
def crew_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running service; what CrewAI keeps goes to a folder of its own, and nothing to its makers."""
    folder = tmp_path_factory.mktemp("crew")
    own = {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "CREWAI_TRACING_ENABLED": "false",
        "OTEL_SDK_DISABLED": "true",
    }
    command = [os.environ["CREW_PYTHON"], str(AGENTS / "crew_service.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **own}) as service:
        assert service.stdout is not None
        yield service.stdout.readline().strip()
        service.kill()


def crew_run(folder: Path, service: str, observer: Observer = watch_nothing) -> Child:
    folder.mkdir(exist_ok=True)
    settings = ("agent=crew:agent", f"max_batches={NUM_BATCHES}")
    return fixture_d(folder, *settings, observer=observer, environ={"CREW_SERVICE": service})


def test_a_crew_is_trained_on_what_it_sampled_and_a_kill_changes_nothing(crew_service: str, tmp_path: Path) -> None:
    undisturbed = crew_run(tmp_path / "undisturbed", crew_service)
    assert run_child(undisturbed) == 0, undisturbed.output
    for batch in range(NUM_BATCHES):
        captured = captured_turns(undisturbed.log_path, batch)
        assert captured.total() >= 2 * 2
        assert trained_turns(undisturbed.log_path, batch) == captured
    assert run_child(crew_run(tmp_path / "killed", crew_service, KillAt("request:before:sample", 11))) == -9
    resumed = crew_run(tmp_path / "killed", crew_service)
    assert run_child(resumed) == 0, resumed.output
    assert first_difference(outcome_of_run(undisturbed.log_path), outcome_of_run(resumed.log_path)) is None
