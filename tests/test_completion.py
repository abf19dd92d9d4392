"""What a shell completes: commands, options, fields, recipes, and the choices of a field."""

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.cli import main


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("orchestrator sta", ["status"]),
        ("orchestrator run batch_s", ["batch_size="]),
        ("orchestrator run batch_size=2 local.num", ["local.num_threads="]),
        # Readline has the part before `=` already.
        ("orchestrator run backend=", ["auto", "tinker", "local"]),
        ("orchestrator run seed=1 recipe=h", ["hello"]),
        ("orchestrator chaos tensorboard=t", ["true"]),
        ("orchestrator journal --f", ["--follow"]),
        ("orchestrator completion f", ["fish"]),
        ("orchestrator status ru", []),
    ],
)
def test_bash_completes_what_is_typed(line: str, completed: list[str], script: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("needs bash")
    words = line.replace("=", " = ").split()  # as readline cuts a line
    asked = (
        f"compopt() {{ :; }}; source {script}; COMP_LINE='{line}' COMP_POINT={len(line)} "
        f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1} COMP_WORDBREAKS='=:'; _orchestrator; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    given = subprocess.run([bash, "-c", asked], capture_output=True, text=True, check=True)
    assert given.stderr == ""
    assert given.stdout.split() == completed


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_same_words(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    told = capsys.readouterr().out
    for word in ("status", "batch_size=", "local.dtype=bfloat16", "recipe=hello", "--follow"):
        assert word in told
    if shutil.which(shell) is not None:
        path = tmp_path / "completion"
        path.write_text(told)
        subprocess.run([shell, "-n", str(path)], check=True)
