"""The ``runner`` command: it joins and leaves at any time; neither its death nor the run's loses or doubles a thing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from placed_runs import KEY_IN_ENVIRON, external, kill, running, start_runner, store_port, stored_rollouts
from processes import AGENTS, Child, run_child, run_command, start_child, wait_for

from orchestrator.errors import OrchestratorError
from orchestrator.rollouts.runners import pool
from orchestrator.rollouts.runners.pool import WorkerPool
from orchestrator.testing import KillAt, outcome_of_run


def last_call_of_batch(batch: int) -> KillAt:
    """Fixture D makes eight calls a batch."""
    return KillAt("request:before:sample", 8 * batch + 7)


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """Read it to wait for the chosen rollout's first turn."""
    os.mkfifo(tmp_path / "started.fifo")
    return tmp_path / "started.fifo"


def test_a_killed_runner_loses_nothing_and_another_goes_on(
    tmp_path: Path, started: Path, uninterrupted_child: Child
) -> None:
    child, runner = external(tmp_path, "agent=deadly:hangs_once")
    run = start_child(child)
    with running(runner()) as first:
        assert started.read_text() == "one turn is taken"
        with running(runner()) as second:
            kill(first)
            assert wait_for(run) == 0, child.output
            second.terminate()
            assert wait_for(second) == 143
    assert "it was silent for 5 s" in (child.log_path / "log.jsonl").read_text()
    assert stored_rollouts(child) == stored_rollouts(uninterrupted_child)


def test_a_runner_lives_through_the_runs_death_and_plays_for_its_resume(
    tmp_path: Path, uninterrupted_child: Child
) -> None:
    killed, runner = external(tmp_path, observer=last_call_of_batch(1))
    with running(runner("num_workers=2")) as living:
        assert run_child(killed) == -9
        assert living.is_alive()
        back, _ = external(tmp_path, f"store_port={store_port(killed)}")
        assert run_child(back) == 0, back.output
        living.terminate()
        assert wait_for(living) == 143
    assert outcome_of_run(back.log_path) == outcome_of_run(uninterrupted_child.log_path)
    assert stored_rollouts(back) == stored_rollouts(uninterrupted_child)


def test_a_runner_that_is_asked_to_end_ends_its_rollout_first(
    tmp_path: Path, started: Path, uninterrupted_child: Child
) -> None:
    child, runner = external(tmp_path, "agent=deadly:pauses_once")
    run = start_child(child)
    with running(runner()) as first:
        assert started.read_text() == "one turn is taken"
        first.terminate()
        with running(runner()):
            (tmp_path / "go_on.fifo").write_text("now")
            assert wait_for(first) == 143
            assert wait_for(run) == 0, child.output
    assert "a worker was lost" not in (child.log_path / "log.jsonl").read_text()
    assert stored_rollouts(child) == stored_rollouts(uninterrupted_child)


def test_a_sigterm_for_the_whole_process_group_lets_rollouts_end_too(
    tmp_path: Path, started: Path, uninterrupted_child: Child
) -> None:
    """As service managers send it: it reaches the runner, its workers, and the server that they are forked from."""
    child, runner = external(tmp_path, "agent=deadly:pauses_once")
    run = start_child(child)
    store = f"store_address=http://127.0.0.1:{store_port(child)}"
    command = [sys.executable, "-m", "orchestrator", "runner", store, "agent=deadly:pauses_once"]
    path = os.pathsep.join([str(AGENTS), *sys.path])
    environ = {**os.environ, **KEY_IN_ENVIRON, "PYTHONPATH": path}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, start_new_session=True, stderr=subprocess.DEVNULL
    ) as first:
        assert started.read_text() == "one turn is taken"
        os.killpg(first.pid, signal.SIGTERM)
        (tmp_path / "go_on.fifo").write_text("now")
        assert first.wait() == 143
    with running(runner()):
        assert wait_for(run) == 0, child.output
    assert "a worker was lost" not in (child.log_path / "log.jsonl").read_text()
    assert stored_rollouts(child) == stored_rollouts(uninterrupted_child)


async def test_a_machine_that_has_no_process_left_ends_the_run_and_not_in_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fork server dies of a fork that fails, and who asked it for one reads the end of its file."""
    starts = []

    def no_process(_process: object) -> None:
        starts.append(1)
        raise EOFError("unexpected EOF")

    async def nothing(_worker_id: str, _how: str) -> None: ...

    monkeypatch.setattr(pool, "_start_shielded", no_process)
    monkeypatch.setattr(pool, "RESTART_SECONDS", 0)
    workers = WorkerPool(1, store_address="http://127.0.0.1:1", agent="a:b", key="k" * 20, on_death=nothing)
    with pytest.raises(OrchestratorError, match="no worker process could be started, the last time for EOFError"):
        await workers.keep_alive()
    assert len(starts) == pool.MAX_FAILED_STARTS


def test_a_runner_that_the_run_cannot_use_is_told_why_and_starts_nothing(tmp_path: Path) -> None:
    child, runner = external(tmp_path)
    run = start_child(child)
    with running(run), running(runner()):
        store = f"store_address=http://127.0.0.1:{store_port(child)}"
        for problem, process in {
            "needs the run's key": start_runner(tmp_path / "key", store, "agent=letters:agent", key="x" * 20),
            "the worker plays agent=letters:other": start_runner(tmp_path / "agent", store, "agent=letters:other"),
            "plays agent=letters:agent adapter=tracer": start_runner(
                tmp_path / "adapter", store, "agent=letters:agent", "adapter=tracer"
            ),
        }.items():
            assert wait_for(process) == 2
            assert any(problem in told.read_text() for told in tmp_path.glob("*/stderr.txt"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["agent=letters:agent"], "store_address"),
        (["store_adress=http://h:1"], "did you mean store_address="),
        (["store_address=h:1", "agent=letters:agent"], "expected http://HOST:PORT"),
        (["store_address=http://h:1", "agent=letters:agent", "adapter=x"], "expected that of the run"),
        (["store_address=http://h:1", "agent=letters:agent"], "ORCHESTRATOR_STORE_KEY is not set"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(settings: list[str], told: str, tmp_path: Path) -> None:
    code, _, stderr = run_command(tmp_path, "runner", *settings)
    assert code == 2
    assert told in stderr


async def test_runners_that_share_host_name_and_process_id_name_their_workers_apart() -> None:
    """As in containers, where each is process 1. A worker's name is by what the store knows whose work is whose."""

    async def nothing(_worker_id: str, _how: str) -> None: ...

    def make() -> WorkerPool:
        return WorkerPool(1, store_address="http://127.0.0.1:1", agent="letters:agent", key="k" * 20, on_death=nothing)

    assert make()._name != make()._name
