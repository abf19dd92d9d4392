"""What the documents say is what the program does."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Child

from orchestrator.journal.records import FIELDS, decode
from orchestrator.reporting.status import read_status
from orchestrator.verify.journal_facts import RESULT_FIELDS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of ``page`` in ``language``."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_the_documents_leads_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_journals_page_shows_real_records_and_names_every_kind_and_field() -> None:
    text = (DOCS / "journal.md").read_text()
    (example,) = blocks("journal.md", "jsonl")
    kinds = [decode(line.encode()).kind for line in example.splitlines()]
    assert len(set(kinds)) == len(kinds) >= 4
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for kind, fields in FIELDS.items():
        assert [name for name in fields if f"`{name}`" not in rows[kind]] == [], kind
    states = {line.split(" ")[1]: line for line in text.splitlines() if re.match(r"\| [A-Z]", line)}
    for state, facts in RESULT_FIELDS.items():
        told = states[state] + states["Rollout"] if "evaluated" in facts else states[state]
        assert [name for name in facts if f"`{name}`" not in told] == [], state


def test_the_fields_of_a_status_are_those_that_the_operating_page_tells(uninterrupted_child: Child) -> None:
    told = read_status(uninterrupted_child.log_path).to_json()
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "operating.md").read_text(), re.MULTILINE)
    assert rows == list(told)
    assert {"state", "batch", "num_batches", "finished"} <= told["plan"].keys()


def test_the_extensions_that_are_worked_out_work(tmp_path: Path) -> None:
    """A copy of the project with the new state and the new backend trains, and is verified."""
    for folder in ("orchestrator", "states"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for block in blocks("extending.md", "python"):
        name = block.partition("\n")[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    for block in blocks("extending.md", "diff"):
        patch(tmp_path, block)

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    settings = ("recipe=hello", "backend=local", "max_batches=1", "log_path=run")
    assert run("my_backend.py", *settings) == "backend: LocalServiceClient\n"
    assert "Rollout --> Inspect: always" in run("-m", "orchestrator", "graph")
    assert "Inspect -> TrainStep after" in run("-m", "orchestrator", "journal", "run")
    assert "PASS" in run("-m", "orchestrator", "verify", "run")
    (first, *_) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert first["inspect/clean"] == 1.0


def patch(folder: Path, block: str) -> None:
    """Applies a block of hunks, which ``---`` parts, to the file that its first line names."""
    head, _, body = block.partition("\n")
    path = folder / head.removeprefix("--- ")
    text = path.read_text()
    for hunk in body.split("---\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, f"{path} has not one place for: {old}"
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    path.write_text(text)
