"""The runs that are reported, one of them killed three times, with hostile texts; and the browser that shows them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright
from processes import Child, fixture_d, run_child

from orchestrator.testing import KillAt

MARKUP = "</script><img src=x onerror=alert(1)>"
ERROR = "</pre><video autoplay>"
"""What tests/agents/hostile.py has in its tasks and in its exception."""
SETTINGS = (
    "agent=hostile:agent",
    "train_dataset=hostile:TASKS",
    "val_dataset=hostile:VAL_TASKS",
    f"wandb_name={MARKUP}",
    "eval_every=2",
    "save_every=2",
    "rolling_save_every=1",
    "concurrency=1",
)
FIRST_KILL = "request:before:sample", 2 * 2 + 5
"""In Rollout of batch 0, with two of four rollouts stored: after the first evaluation's four calls."""
KILLS = (FIRST_KILL, ("request:before:optim_step", 0), ("append:after:checkpoint_saved", 1))


@pytest.fixture(scope="session")
def first_killed(tmp_path_factory: pytest.TempPathFactory) -> Child:
    """Killed in its first batch."""
    child = fixture_d(tmp_path_factory.mktemp("first-killed"), *SETTINGS, observer=KillAt(*FIRST_KILL))
    assert run_child(child) == -9, child.output
    return child


@pytest.fixture(scope="session")
def thrice_killed(first_killed: Child, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the same run, killed twice more and then finished; not to be written to."""
    folder = tmp_path_factory.mktemp("thrice-killed") / "run"
    shutil.copytree(first_killed.folder, folder)
    for point, occurrence in KILLS[1:]:
        child = fixture_d(folder, *SETTINGS, observer=KillAt(point, occurrence))
        assert run_child(child) == -9, child.output
    child = fixture_d(folder, *SETTINGS)
    assert run_child(child) == 0, child.output
    return child.log_path


@pytest.fixture
def in_first_batch(first_killed: Child, tmp_path: Path) -> Path:
    """The directory of a copy of the run that was killed in its first batch."""
    shutil.copytree(first_killed.folder, tmp_path / "first")
    return tmp_path / "first" / first_killed.log_path.name


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium: ``$CHROMIUM``, or the one in the PATH. Without one its tests fail: install ``chromium``.

    For one module only: while it lives no other event loop can run in this thread.
    """
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert found, "no Chromium: set CHROMIUM, or install one (Debian: apt-get install chromium)"
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # which Chromium has none of for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=sandbox)
        yield browser
        browser.close()
