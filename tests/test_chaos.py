"""The chaos command: it proves what holds, and finds what does not."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from processes import AGENTS

from orchestrator.chaos.blows import KILLS_A_ROUND, draw_blows
from orchestrator.chaos.campaign import Verdict, bound
from orchestrator.chaos.rounds import Kill, Reference, Round
from orchestrator.chaos.table import verdict_lines
from orchestrator.chaos.wanted import read_wanted
from orchestrator.cli import main
from orchestrator.errors import ConfigError
from orchestrator.testing import first_difference

SMALL = ("recipe=none", "batch_size=2", "group_size=2", "lora_rank=0", "max_tokens=4", "max_batches=2", "concurrency=1")


@pytest.fixture(autouse=True)
def _beside_the_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(AGENTS)


def test_kills_change_nothing_and_the_verdict_says_how_sure_that_is(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    agent = ("agent=letters:agent", "train_dataset=letters:TASKS")
    code = main(["chaos", "kills=8", "seed=1", f"log_path={tmp_path / 'chaos'}", *SMALL, *agent])
    told = capfd.readouterr()
    assert code == 0, told.err
    passed = re.search(
        r"^PASS (\d+) kills in (\d+) runs, no difference, .* than ([\d.]+)% .*, ([\d.]+)% of kills",
        told.out,
        re.MULTILINE,
    )
    assert passed is not None, told.out
    kills, runs = int(passed[1]), int(passed[2])
    assert kills >= 8 >= runs >= 1
    assert (1 - float(passed[3]) / 100) ** runs == pytest.approx(0.05, rel=1e-2)
    assert (1 - float(passed[4]) / 100) ** kills == pytest.approx(0.05, rel=1e-2)
    assert not (tmp_path / "chaos").exists()


def test_a_run_that_comes_out_differently_is_told_with_its_kills_and_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An agent that counts its plays in memory gives other rewards after a kill."""
    agent = ("agent=forgetful:agent", "train_dataset=forgetful:TASKS")
    code = main(["chaos", "kills=20", "seed=0", f"log_path={tmp_path / 'chaos'}", *SMALL, *agent])
    told = capfd.readouterr()
    assert code == 1, told.out
    failed = re.search(r"^FAIL (round-\d+), seed 0, differs from the undisturbed run: (.*)", told.out, re.MULTILINE)
    assert failed is not None, told.out
    assert re.match(r"rollout \S+, attempt 0: succeeded with reward \S+, expected succeeded with reward ", failed[2])
    assert "every token is the same: an agent that keeps something between rollouts" in failed[2]
    assert re.search(r"^its kills, in order: .* in (start-up|[A-Z])", told.out, re.MULTILINE)
    assert (tmp_path / "chaos" / failed[1] / "run" / "journal.jsonl").is_file()
    assert f"only={failed[1]}" in told.out


def test_a_run_that_trains_nothing_proves_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    agent = ("agent=forgetful:content", "train_dataset=forgetful:TASKS")
    code = main(["chaos", f"log_path={tmp_path / 'chaos'}", *SMALL, "max_batches=1", *agent])
    told = capfd.readouterr()
    assert code == 2, told.out
    assert "the undisturbed run takes no optimizer step" in told.err
    assert "PASS" not in told.out


def test_the_same_seed_and_round_strike_at_the_same_places() -> None:
    drawn = [draw_blows(7, number, num_points=500, run_seconds=2.0) for number in range(50)]
    assert drawn == [draw_blows(7, number, num_points=500, run_seconds=2.0) for number in range(50)]
    assert all(one != other for one, other in pairwise(drawn))
    blows = [blow for each in drawn for blow in each]
    assert len(blows) == 50 * KILLS_A_ROUND
    points = [blow.point for blow in blows if blow.point is not None]
    seconds = [blow.seconds for blow in blows if blow.seconds is not None]
    assert len(points) + len(seconds) == len(blows)
    assert min(points) < 10
    assert 400 < max(blows[0].point for blows in drawn if blows[0].point is not None) < 500
    assert 0 <= min(seconds) < 0.1 < 0.4 < max(seconds) <= 0.5


def test_a_thousand_kills_without_a_difference_bound_the_share_of_bad_ones_at_three_in_a_thousand() -> None:
    kill = Kill("request:before:sample", "Rollout", 1, 3, 0)
    assert bound(1000) == pytest.approx(0.002991, rel=1e-3)
    reference = Reference(Path("unused"), {}, 1, 1.0, {})
    rounds = [Round(f"round-{number}", kills=[kill] * 8) for number in range(125)]
    *_, spared, passed = verdict_lines(Verdict(rounds, reference, 1.0, Path("unused"), seed=0))
    assert spared.startswith("no kill fell in PublishModel, MaybeEvaluate, TrainStep, SwapSampler, Log: ")
    assert "1,000 kills in 125 runs, no difference" in passed
    assert "2.37% of runs" in passed
    assert "0.30% of kills" in passed
    nothing = Verdict([], reference, 1.0, Path("unused"), seed=0)
    assert bound(0) == 1
    assert list(verdict_lines(nothing))[-1] == "no run was killed, so nothing is proved"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("kills=-1", "kills=-1: expected a whole number of at least 0"),
        ("jobs=0", "jobs=0: expected a whole number of at least 1"),
        ("every_point=yes", "every_point=yes: expected true or false"),
        ("only=kill-3", "only=kill-3: expected the name of a round"),
        ("killz=3", "no field killz"),
        ("backend=tinker", "backend=tinker: runs are compared bit for bit"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_wanted([argument])


def test_a_folder_that_holds_files_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["chaos", f"log_path={tmp_path}"]) == 2
    assert "holds files; give chaos a new or empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}, None),
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, ".a[1].b is 3, expected 2"),
        ({"a": [1]}, {"a": [1, 2]}, ".a is [1, 2], expected [1]"),
        ({"a": 1}, {}, ".a is missing"),
        ({}, {"a": 1}, ".a is not expected"),
        ({"a": "x"}, {"a": "y"}, ".a is 'y', expected 'x'"),
    ],
)
def test_the_first_difference_is_told_with_its_place(expected: object, found: object, difference: str | None) -> None:
    assert first_difference(expected, found) == difference
