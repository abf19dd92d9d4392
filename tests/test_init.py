"""The init command: what it writes is a project whose tests pass and which trains; it overwrites nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_command

from orchestrator.cli import main


def test_a_new_project_passes_its_test_and_trains(tmp_path: Path) -> None:
    code, told, _ = run_command(tmp_path, "init", "mine")
    assert code == 0
    project = tmp_path / "mine"
    assert {path.name for path in project.iterdir()} == {
        "agent.py",
        "tasks.jsonl",
        "val.jsonl",
        "run.toml",
        "test_agent.py",
        "README.md",
    }
    readme = (project / "README.md").read_text()
    assert readme.startswith("# mine\n")
    assert len(readme.splitlines()) <= 20
    command = "python -m orchestrator run config=run.toml"
    assert command in told
    assert command in readme
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    settings = command.split()[4:]
    code, _, told = run_command(
        project, "run", *settings, "max_batches=2", "group_size=4", "local.warm_start_steps=120"
    )
    assert code == 0, told
    rows = [json.loads(line) for line in (project / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert sum(row.get("train/optim_steps", 0) for row in rows) > 0
    assert 0.2 < rows[0]["rollout/reward_mean"] < 0.8, "the warm start names either number"


@pytest.mark.parametrize("there", ["notes.txt", None])
def test_what_is_there_is_left_alone(there: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    if there is None:
        folder.write_text("a file")
    else:
        folder.mkdir()
        (folder / there).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert main(["init", str(folder)]) == 2
    told = capsys.readouterr()
    assert (there or "a file of that name") in told.err
    assert told.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_a_finished_run_has_nothing_to_do_and_says_so_without_loading_the_libraries(tmp_path: Path) -> None:
    assert main(["init", str(tmp_path / "mine")]) == 0
    settings = ("config=run.toml", "max_batches=1", "group_size=2", "local.warm_start_steps=1")
    assert run_command(tmp_path / "mine", "run", *settings)[0] == 0
    program = (
        "import sys, orchestrator.cli\n"
        "code = orchestrator.cli.main(sys.argv[1:])\n"
        "print('imported:', code, *sorted(set(sys.modules) & {'torch', 'litellm', 'agentlightning', 'tinker'}))"
    )
    again = subprocess.run(
        [sys.executable, "-c", program, "run", *settings],
        cwd=tmp_path / "mine",
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout.splitlines() == ["imported: 0"]
    assert "nothing to do: the run has finished" in again.stderr
    assert "1 of 1, " in again.stderr
