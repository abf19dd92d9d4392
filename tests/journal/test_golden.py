"""Journals of every format version that this project ever wrote fold for ever to what they folded to then."""

import json
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from golden.make import FOLDER, STORIES, folded

from orchestrator.cli import main
from orchestrator.errors import JournalDamagedError
from orchestrator.journal.log import JOURNAL_NAME, Journal, read_journal
from orchestrator.journal.plan import make_plan
from orchestrator.journal.records import FIELDS, FORMAT_VERSION, Kind

VERSIONS = range(1, FORMAT_VERSION + 1)


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_journal_folds_to_what_it_always_did(version: int, story: str) -> None:
    """What a later version of the fold knows besides does not matter; what it knew, it still knows."""
    kept = FOLDER / f"v{version}" / story
    expected = json.loads((kept / "fold.json").read_text())
    found = folded(read_journal(kept).run)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_journal_is_of_its_own_version_line_by_line(version: int, story: str) -> None:
    """A new format gets new golden journals beside the old ones, which stay: make them with ``golden/make.py``."""
    lines = (FOLDER / f"v{version}" / story / JOURNAL_NAME).read_bytes().splitlines()
    assert {json.loads(line)["v"] for line in lines} == {version}
    assert sorted(path.name for path in FOLDER.glob("v*")) == [f"v{known}" for known in VERSIONS]


def test_the_golden_journals_hold_every_kind_of_record() -> None:
    kinds = {record.kind for story in STORIES for record in read_journal(FOLDER / f"v{FORMAT_VERSION}" / story).records}
    assert kinds == set(Kind) == FIELDS.keys()


def test_each_golden_journal_tells_its_story(tmp_path: Path) -> None:
    runs = {story: read_journal(FOLDER / f"v{FORMAT_VERSION}" / story).run for story in STORIES}
    assert runs["finished"].finished
    assert (runs["killed"].running, runs["killed"].failures, runs["killed"].batch) == (True, 1, 1)
    assert runs["drifted"].config["learning_rate"] == 0.002
    assert (runs["drifted"].num_batches, runs["drifted"].schedule_batches) == (3, 2)
    assert (runs["rebuilt"].finished, runs["rebuilt"].processes, runs["rebuilt"].lost_clients) == (True, 2, 1)
    assert runs["rebuilt"].optimizer_restores
    assert "resumes at TrainStep of batch 1" in "\n".join(make_plan(runs["killed"], tmp_path).lines())


def test_a_golden_journal_can_be_gone_on_with(tmp_path: Path) -> None:
    shutil.copytree(FOLDER / f"v{FORMAT_VERSION}" / "killed", tmp_path, dirs_exist_ok=True)
    kills = read_journal(tmp_path).run.kills
    with Journal(tmp_path) as journal:
        run = journal.run
        journal.append(
            Kind.PROCESS_STARTED,
            pid=1,
            host="here",
            resumed_from={"batch": run.batch, "state": run.state},
            attempt=run.processes,
            config=run.config,
            drift=[],
            num_batches=run.num_batches,
        )
    assert read_journal(tmp_path).run.kills == kills + 1


def test_a_record_of_a_newer_format_is_refused_with_advice_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (FOLDER / f"v{FORMAT_VERSION}" / "finished" / JOURNAL_NAME).read_bytes().splitlines(keepends=True)
    newer = lines[-1].replace(b'{"v":%d,' % FORMAT_VERSION, b'{"v":%d,' % (FORMAT_VERSION + 1))
    body = newer[: newer.rindex(b',"crc"')] + b"}"
    data = b"".join(lines[:-1]) + body[:-1] + b',"crc":"%08x"}\n' % crc32(body)
    (tmp_path / JOURNAL_NAME).write_bytes(data)
    with pytest.raises(JournalDamagedError, match=f"line {len(lines)} .*format v {FORMAT_VERSION + 1}, newer than"):
        read_journal(tmp_path)
    assert main(["status", str(tmp_path)]) == 3
    assert "If a newer version wrote it, use that one" in capsys.readouterr().err
    assert (tmp_path / JOURNAL_NAME).read_bytes() == data
