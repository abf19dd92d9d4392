"""A start that is refused says why in one message, leaves nothing behind, and is the same command once it is mended."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from processes import FIXTURE_D, fixture_d, run_child, run_command

from orchestrator.cli import main
from orchestrator.testing import KillAt, outcome_of_run, read_ledger


@contextmanager
def foreign_server() -> Iterator[tuple[int, list[str]]]:
    """A server that answers 200 to everything: its port, and what it was asked."""
    asked: list[str] = []

    class Foreign(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"data": []}')

        do_POST = do_GET  # noqa: N815 - likewise

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_gateway_port_that_a_foreign_server_holds_ends_the_start_and_costs_nothing(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """H13."""
    with foreign_server() as (port, asked):
        child = fixture_d(tmp_path, f"gateway_port={port}", "max_attempts=1")
        began = time.monotonic()
        assert run_child(child) == 1
        assert time.monotonic() - began < 10
        assert f"gateway_port={port}: another process listens on 127.0.0.1:{port}" in child.output
        assert asked == []
        assert read_ledger(child.ledger) == []
    assert run_child(child) == 0
    assert outcome_of_run(child.log_path) == uninterrupted


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("renderer_name=nonsense", "renderer_name=nonsense: does not work with the tokenizer of tiny"),
        ("agent=letters:nobody", "agent=letters:nobody: module letters"),
        (
            "load_checkpoint_path=local://run/weights/000030-final",
            "no checkpoint (any more). Give the directory",
        ),
        ("load_checkpoint_path=runs/gone", "load_checkpoint_path=runs/gone: there is no checkpoint"),
        ("train_dataset=letters:NOTHING", "train_dataset=letters:NOTHING: module letters"),
    ],
)
def test_a_start_that_is_refused_leaves_no_run_behind(setting: str, told: str, tmp_path: Path) -> None:
    given = dict(field.split("=", 1) for field in (*FIXTURE_D, "log_path=run", setting))
    settings = [f"{name}={value}" for name, value in given.items()]
    code, _, stderr = run_command(tmp_path, "run", *settings)
    assert code == 2
    assert told in stderr
    assert {path.name for path in tmp_path.glob("run/*")} <= {"log.jsonl"}
    code, _, stderr = run_command(tmp_path, "run", *FIXTURE_D, "log_path=run", "max_batches=1")
    assert code == 0, stderr


def test_a_kill_right_before_the_first_record_leaves_nothing_that_the_next_start_minds(
    tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The built-in model is kept by then, but no journal says whose it is."""
    assert run_child(fixture_d(tmp_path, observer=KillAt("append:before:run_started"))) == -9
    assert (tmp_path / "run" / "local" / "base").is_dir()
    assert run_child(fixture_d(tmp_path)) == 0
    assert outcome_of_run(tmp_path / "run") == uninterrupted


def test_a_run_whose_journal_was_lost_is_left_as_it_is(killed: Path, uninterrupted: dict[str, Any]) -> None:
    """No new run is started among its files, and once the journal is restored it goes on."""
    journal = killed / "run" / "journal.jsonl"
    journal.rename(killed / "aside")
    (killed / "run" / "lock").unlink()  # of the killed process
    before = set(killed.rglob("*"))
    refused = fixture_d(killed)
    assert run_child(refused) == 3
    assert "but no journal.jsonl" in refused.output
    assert set(killed.rglob("*")) == before
    (killed / "aside").rename(journal)
    assert run_child(fixture_d(killed)) == 0
    assert outcome_of_run(killed / "run") == uninterrupted


@pytest.mark.parametrize(("name", "code"), [("log.jsonl", 2), ("journal.jsonl", 3), ("metrics.jsonl", 3)])
def test_a_directory_where_a_file_belongs_is_an_error_that_names_it(name: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    found, _, stderr = run_command(tmp_path, "run", *FIXTURE_D, "log_path=run")
    assert found == code
    assert name in stderr
    assert "Traceback" not in stderr
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]


@pytest.mark.parametrize("arguments", [("run", "log_path=\udcff"), ("status", "\udcff"), ("\udcff",)])
def test_an_argument_that_is_no_text_is_a_usage_error(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert r"\udcff" in capsys.readouterr().err


def test_a_refused_start_removes_nothing_that_it_did_not_make(tmp_path: Path) -> None:
    """The directory may be one that somebody uses for something else."""
    theirs = tmp_path / "run" / "local" / "base" / "prod" / "thesis.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    assert run_child(fixture_d(tmp_path, "renderer_name=nonsense")) == 2
    assert theirs.read_text() == "years of work"
    assert sorted(path.name for path in theirs.parents[1].iterdir()) == ["prod"]


def test_an_address_that_holds_a_secret_is_refused_without_being_quoted(tmp_path: Path) -> None:
    for address in ("https://joe:hunter2@example.org", "https://example.org/?api_key=hunter2"):
        child = fixture_d(tmp_path, f"base_url={address}")
        assert run_child(child) == 2
        assert "hunter2" not in child.output
