"""Laws of the report command: what it writes and refuses, and that damage beside the journal is told and no end."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.errors import ConfigError
from orchestrator.journal.log import JOURNAL_NAME
from orchestrator.report.command import check_packages
from orchestrator.verify import verify


def damage(path: Path) -> None:
    """Changes one byte in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_file_is_the_owner_s_alone_and_nothing_else_in_the_run_changes(
    in_first_batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.read_bytes() for path in in_first_batch.rglob("*") if path.is_file()}
    assert main(["report", str(in_first_batch)]) == 0
    written = in_first_batch / "report.html"
    assert capsys.readouterr().out == f"{written}\n"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    after = {path: path.read_bytes() for path in in_first_batch.rglob("*") if path.is_file() and path != written}
    assert after == before
    assert verify(in_first_batch).passed
    assert len(written.read_bytes()) < 2_000_000


def test_without_with_prompts_no_text_of_a_task_or_reply_is_in_the_file(thrice_killed: Path, tmp_path: Path) -> None:
    """Not even as data: the markup is in the configuration, but with a task's number only in prompts and an error."""
    told = {}
    for option in ((), ("--with-prompts",)):
        output = tmp_path / f"report{len(option)}.html"
        assert main(["report", str(thrice_killed), "--output", str(output), *option]) == 0
        told[option] = [f"onerror=alert(1)&gt;{task}" in output.read_text() for task in ("t0", "t3", "v0")]
        assert "im_start" in output.read_text() or not option
        assert "&lt;|im_end|" in output.read_text() or not option
    assert told == {(): [False] * 3, ("--with-prompts",): [True] * 3}


@pytest.mark.parametrize("live", [False, True])
def test_a_damaged_journal_is_refused_and_no_file_is_written(
    live: bool, in_first_batch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = in_first_batch / JOURNAL_NAME
    journal.write_bytes(journal.read_bytes().replace(b'"seq":2,', b'"seq":3,', 1))
    assert main(["report", str(in_first_batch), *(["--follow"] if live else [])]) == 3
    assert "line 3" in capsys.readouterr().err
    assert not (in_first_batch / "report.html").exists()


@pytest.mark.parametrize(
    ("damaged", "told"),
    [
        (lambda run: damage(run / "rollouts" / "000000.train.jsonl"), "rollouts of batch 0 (train)"),
        (lambda run: damage(run / "rollouts" / "000000.eval.jsonl"), "rollouts of batch 0 (eval)"),
        (lambda run: (run / "rollouts" / "000000.eval.jsonl").unlink(), "rollouts of batch 0 (eval)"),
        (lambda run: (run / "usage.jsonl").write_bytes(b"{\n\xff\n"), ""),
        (lambda run: (run / "metrics.jsonl").unlink(), ""),
    ],
    ids=["changed rollouts", "changed evaluation", "missing evaluation", "no usage", "missing view"],
)
def test_damage_beside_the_journal_is_told_and_the_rest_is_reported(
    damaged: Callable[[Path], object], told: str, in_first_batch: Path
) -> None:
    damaged(in_first_batch)
    assert main(["report", str(in_first_batch)]) == 0
    page = (in_first_batch / "report.html").read_text()
    assert told in page
    assert ("Not everything could be read" in page) == bool(told)
    assert "killed in Rollout of batch 0" in page


def test_where_no_run_is_nothing_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "no run is there" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_what_does_not_go_together_is_a_usage_error(in_first_batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(in_first_batch), "--follow", "--output", "x.html"]) == 2
    assert main(["report", str(in_first_batch), "--port", "80"]) == 2
    assert main(["report", str(in_first_batch), "--output", str(in_first_batch)]) == 2
    told = capsys.readouterr().err
    for part in ("leave --output out", "--port is for --follow", "is a folder"):
        assert part in told


def test_a_missing_package_is_told_with_what_installs_it() -> None:
    with pytest.raises(
        ConfigError, match=r"altair and vl-convert-python are not installed.*pip install altair vl-conv"
    ):
        check_packages(find=lambda _name: None)
    check_packages()
