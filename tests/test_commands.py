"""The commands that look at a run: what they say, what they return, and that they leave everything as it is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Child

from orchestrator.cli import main
from orchestrator.journal.log import JOURNAL_NAME
from orchestrator.names import TRANSITIONS

HEAVY = ("torch", "litellm", "agentlightning", "tinker")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("status", "--json"), ("journal",), ("journal", "--json"), ("journal", "--batch", "1")],
    ids=" ".join,
)
def test_looking_at_a_killed_run_changes_nothing_in_it(arguments: tuple[str, ...], killed_child: Child) -> None:
    before = contents(killed_child.folder)
    command, *options = arguments
    assert main([command, str(killed_child.log_path), *options]) == 0
    assert contents(killed_child.folder) == before


def test_status_tells_where_a_killed_run_is_and_what_a_resume_keeps_and_redoes(
    killed_child: Child, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(killed_child.log_path)]) == 0
    told = capsys.readouterr().out
    for part in (
        "not running: the last process was killed",
        "resumes at Rollout of batch 1, of 3 batches",
        "kept: 2 of 4 train rollouts",
        "checkpoint 000000 (0 batches trained",
        "train steps of batch 0 redone",
        "1 process, 1 of them killed",
    ):
        assert part in told


def test_status_gives_the_same_as_json(killed_child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(killed_child.log_path), "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    plan = status["plan"]
    assert (status["holder"], status["killed"]) == (None, True)
    assert (plan["batch"], plan["state"], plan["kept_rollouts"], plan["total_rollouts"]) == (1, "Rollout", 2, 4)
    assert (plan["checkpoint"]["name"], plan["redone_batches"], plan["kills"]) == ("000000", [0], 1)


def test_a_finished_run_has_nothing_to_do(uninterrupted_child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(uninterrupted_child.log_path)]) == 0
    assert "nothing to do: the run has finished, 3 batches" in capsys.readouterr().out


def test_the_journal_is_told_a_line_a_record(killed_child: Child, capsys: pytest.CaptureFixture[str]) -> None:
    stored = (killed_child.log_path / JOURNAL_NAME).read_text()
    assert main(["journal", str(killed_child.log_path), "--json"]) == 0
    assert capsys.readouterr().out == stored
    assert main(["journal", str(killed_child.log_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(stored.splitlines())
    assert "3 batches of 2 groups of 2, model tiny (local)" in lines[0]
    assert "Rollout entered" in lines[-1]
    assert main(["journal", str(killed_child.log_path), "--batch", "1"]) == 0
    batch_1 = capsys.readouterr().out.splitlines()
    assert batch_1 == [line for line in lines if "batch 1 " in line]
    assert len(batch_1) == 5


@pytest.mark.parametrize("command", ["status", "journal"])
def test_where_no_run_is_a_command_says_so_and_makes_none(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(tmp_path / "nowhere")]) == 2
    assert "no run is there" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", ["status", "journal"])
def test_a_damaged_journal_is_refused_by_who_looks_at_it(
    command: str, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = killed / "run" / JOURNAL_NAME
    journal.write_bytes(journal.read_bytes().replace(b'"seq":2,', b'"seq":3,', 1))
    assert main([command, str(killed / "run")]) == 3
    assert "line 3" in capsys.readouterr().err


def test_the_graph_is_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph"]) == 0
    drawn = capsys.readouterr().out
    for move in TRANSITIONS:
        assert f"{move.source} --> {move.dest}" in drawn


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--help"], ["run", "status", "journal", "report", "graph", "exit codes"]),
        (
            ["run", "--help"],
            ["batch_size=32", "local.warm_start=", "exit codes", "recipe=NAME", "[slim | llm_proxy]", "[true | false]"],
        ),
        (["journal", "--help"], ["--follow", "--batch N"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_help_tells_what_there_is(arguments: list[str], parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for part in parts:
        assert part in told


def test_an_unknown_command_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["walk"])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (["run", "--learning_rate=1e-3"], "write learning_rate=1e-3"),
        (["run", "recipe=hello", "--batch-size", "4"], "write batch_size=VALUE"),
        (["chaos", "--kills=3"], "write kills=3"),
        (["runner", "--agent=mine:agent"], "write agent=mine:agent"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_setting_with_dashes_is_told_as_it_is_written(
    given: list[str], written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    told = capsys.readouterr()
    assert told.err.endswith(f"{written}\n")
    assert told.out == ""


def test_an_option_that_no_command_has_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", "runs/none", "--jsn"])
    assert ended.value.code == 2
    assert "--jsn" in capsys.readouterr().err


def test_a_misspelt_recipe_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "recipe=gess_number"]) == 2
    assert "did you mean guess_number?" in capsys.readouterr().err


def test_a_misspelt_field_is_a_usage_error_with_a_suggestion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "recipe=none", "agent=letters:agent", "batchsize=2", "log_path=run"]) == 2
    assert "batch_size" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_reader_that_went_away_is_no_traceback() -> None:
    """As in ``journal LOG_PATH | head``: the pipe's other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    # Buffered, as users have it: then the pipe breaks only when the buffer is written out.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "orchestrator", "graph"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=environ, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments", [[], ["status", "LOG_PATH"], ["journal", "LOG_PATH"], ["run", "--help"], ["fork", "--help"]]
)
def test_only_a_run_imports_the_libraries_that_take_seconds(arguments: list[str], killed_child: Child) -> None:
    given = [str(killed_child.log_path) if argument == "LOG_PATH" else argument for argument in arguments]
    program = (
        "import contextlib, sys, orchestrator.cli\n"
        "with contextlib.suppress(SystemExit):\n"
        "    sys.argv[1:] and orchestrator.cli.main(sys.argv[1:])\n"
        f"print('imported:', *sorted(set(sys.modules) & set({HEAVY!r})))"
    )
    ended = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1].strip() == "imported:"
