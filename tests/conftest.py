"""What the whole-program tests share: a run that nothing disturbs, and one that was killed in the middle."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import Child, fixture_d, run_child
from tinker_runs import run_unseen, service_run
from tinker_server import TinkerServer, tinker_server

from orchestrator.testing import KillAt, outcome_of_run

# Some tests import agents, and with them LiteLLM, before anything of ours that sees to it.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# A fork server imports by PYTHONPATH alone (CPython's gh-117378). A relative one means nothing to it once a test has
# changed the directory; it says nothing, and each of its children imports for ten seconds what it should have had.
if "PYTHONPATH" in os.environ:
    entries = os.environ["PYTHONPATH"].split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)


@pytest.fixture(scope="session")
def uninterrupted_child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run of fixture D; its directory is not to be written to."""
    child = fixture_d(tmp_path_factory.mktemp("uninterrupted"))
    assert run_child(child) == 0
    return child


@pytest.fixture(scope="session")
def uninterrupted(uninterrupted_child: Child) -> dict[str, Any]:
    """What fixture D comes to when nothing disturbs it."""
    return outcome_of_run(uninterrupted_child.log_path)


@pytest.fixture(scope="session")
def killed_child(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Fixture D killed in Rollout of batch 1: two of four rollouts stored, the third between its two turns."""
    calls_in_batch_0, calls_in_batch_1 = 8, 5
    observer = KillAt("request:before:sample", calls_in_batch_0 + calls_in_batch_1)
    child = fixture_d(tmp_path_factory.mktemp("killed"), "concurrency=1", observer=observer)
    assert run_child(child) == -9
    return child


@pytest.fixture
def killed(killed_child: Child, tmp_path: Path) -> Path:
    """A folder with a copy of the killed run, to be resumed with ``fixture_d(killed)``."""
    folder = tmp_path / "killed"
    shutil.copytree(killed_child.folder, folder)
    return folder


@pytest.fixture(scope="session")
def tinker_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    """A Tinker server; ``service`` is it as one test sees it."""
    with tinker_server(tmp_path_factory.mktemp("tinker")) as server:
        yield server


@pytest.fixture
def service(tinker_process: TinkerServer) -> TinkerServer:
    """The Tinker server with an empty log, on which nothing is planned to go wrong."""
    tinker_process.forget()
    return tinker_process


@pytest.fixture(scope="session")
def undisturbed_child(tinker_process: TinkerServer, tmp_path_factory: pytest.TempPathFactory) -> Child:
    """A finished run of fixture D on the Tinker server; its directory is not to be written to."""
    child = service_run(tmp_path_factory.mktemp("undisturbed"), tinker_process)
    assert run_unseen(child) == 0, child.output
    return child
