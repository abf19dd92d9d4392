"""Turns of unfinished rollouts are paid once: whole runs, killed between the turns of an agent and resumed."""

import re
import shutil
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from observers import SignalAt
from processes import AGENTS, FIXTURE_D, Child, fixture_d, run_child, run_command

from orchestrator.cli import main
from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.rollouts.capture import call_seed
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.rollouts.turns import AnsweredCall
from orchestrator.testing import KillAt, Observer, outcome_of_run, read_ledger, watch_nothing
from orchestrator.verify import verify

STEPS = ("agent=steps:agent", "train_dataset=steps:TASKS", "concurrency=1", "max_batches=1", "eval_every=0")
TURNS = 5
OTHERWISE, KEYS = "STEPS_OTHERWISE", "STEPS_KEYS"
"""As in ``agents/steps.py``."""
THIRD_REPLY = KillAt("request:before:sample", 3)
"""When the agent has its third reply and asks for the fourth."""
TURN_FILE = Path("run") / "turns" / "000000.train.jsonl"


def steps(
    folder: Path, *settings: str, observer: Observer = watch_nothing, environ: Mapping[str, str] | None = None
) -> Child:
    folder.mkdir(exist_ok=True)
    return fixture_d(folder, *STEPS, *settings, observer=observer, environ=environ)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Child:
    child = steps(tmp_path_factory.mktemp("undisturbed"))
    assert run_child(child) == 0
    return child


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory: pytest.TempPathFactory) -> Child:
    child = steps(tmp_path_factory.mktemp("killed"), observer=THIRD_REPLY, environ={KEYS: "keys.txt"})
    assert run_child(child) == -9
    return child


@pytest.fixture
def killed(killed_once: Child, tmp_path: Path) -> Child:
    """In the first rollout, three of whose turns are answered."""
    shutil.copytree(killed_once.folder, tmp_path / "killed")
    return steps(tmp_path / "killed")


def samples(child: Child) -> list[tuple[tuple[int, ...], int]]:
    """Prompt and seed of every call that the backend was asked to sample, by all processes."""
    return [(tuple(line["prompt"][0]), line["seed"][0]) for line in read_ledger(child.ledger) if line["seed"]]


def first_rollout(child: Child) -> StoredRollout:
    lines = (child.log_path / "rollouts" / "000000.train.jsonl").read_text().splitlines()
    return StoredRollout.from_json(lines[0])


def result_of_rollout(child: Child) -> dict[str, Any]:
    return read_journal(child.log_path).run.batches[0].results[State.ROLLOUT]


def test_turns_that_an_agent_has_are_not_sampled_again(killed: Child, undisturbed: Child) -> None:
    """H33: after a kill at the third reply the backend is asked for turns 4 and 5 only, and all comes out the same."""
    before = samples(killed)
    assert len(before) == 3
    assert len((killed.folder / TURN_FILE).read_text().splitlines()) == 3
    assert verify(killed.log_path).checked["turns"] == "3 of the rollouts of the state under way"
    child = steps(killed.folder)
    assert run_child(child) == 0, child.output
    assert "kept: 0 of 4 train rollouts, 3 turns of unfinished ones" in child.output
    assert samples(child) == samples(undisturbed), "each call once, in the order of an undisturbed run"
    assert first_rollout(child) == first_rollout(undisturbed)
    assert outcome_of_run(child.log_path) == outcome_of_run(undisturbed.log_path)
    assert result_of_rollout(child)["replay_mismatches"] == 0
    assert list((child.log_path / "turns").iterdir()) == []


def test_an_agent_that_asks_otherwise_has_the_rest_sampled_anew_and_is_counted(
    killed: Child, undisturbed: Child
) -> None:
    """H33: its second prompt is another one, so turns 2 to 5 are sampled anew, and the mismatch is told."""
    child = steps(killed.folder, environ={OTHERWISE: "1"})
    assert run_child(child) == 0, child.output
    assert len(samples(child)) == len(samples(undisturbed)) + 2, "turns 2 and 3 are paid twice"
    rollout, expected = first_rollout(child), first_rollout(undisturbed)
    assert rollout.turns[0] == expected.turns[0]
    assert len(rollout.turns) == TURNS
    assert not set(rollout.turns[1:]) & set(expected.turns)
    assert result_of_rollout(child)["replay_mismatches"] == 1
    assert outcome_of_run(child.log_path)["metrics"][0]["rollout/replay_mismatches"] == 1.0
    assert child.output.count("asks the model otherwise than before") == 1
    assert "1 of 4 rollouts did not ask for all their kept turns" in " ".join(child.output.split())
    assert verify(child.log_path).passed


def test_a_mismatch_is_still_counted_when_the_process_is_killed_after_it(killed: Child) -> None:
    """The count is a function of what is stored. The last process goes on from the newer turns."""
    child = steps(killed.folder, observer=KillAt("request:before:sample", 2), environ={OTHERWISE: "1"})
    assert run_child(child) == -9
    child = steps(killed.folder, environ={OTHERWISE: "1"})
    assert run_child(child) == 0, child.output
    counted = Counter(samples(child))
    assert set(counted.values()) == {1}
    assert result_of_rollout(child)["replay_mismatches"] == 1


def test_the_idempotency_key_of_a_rollout_that_is_run_again_is_the_same_and_no_other_has_it(killed: Child) -> None:
    child = steps(killed.folder, environ={KEYS: "keys.txt"})
    assert run_child(child) == 0, child.output
    keys = Counter((child.folder / "keys.txt").read_text().splitlines())
    run_id = read_journal(child.log_path).run.run_id
    assert keys.pop(f"{run_id}/000000-train-0000-000/0") == 2
    assert len(keys) == 3
    assert set(keys.values()) == {1}


def test_a_torn_turn_was_never_answered_and_a_damaged_one_is_set_aside(killed: Child, undisturbed: Child) -> None:
    """Turns only save money: no damage of theirs refuses the run, and none is trained on."""
    path = killed.folder / TURN_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    code, status, _ = run_command(killed.folder / "command", "status", str(killed.log_path))
    assert (code, "2 turns of unfinished ones" in status) == (0, True), status
    damaged = whole.replace(b'"sampled_tokens":[', b'"sampled_tokens":[1,', 1)
    path.write_bytes(damaged)
    verdict = verify(killed.log_path)
    assert verdict.finding is not None
    assert (verdict.finding.path, verdict.finding.line) == (str(path), 1)
    child = steps(killed.folder)
    assert run_child(child) == 0, child.output
    assert "the kept turns are damaged" in child.output
    assert len(samples(child)) == len(samples(undisturbed)) + 3
    assert outcome_of_run(child.log_path) == outcome_of_run(undisturbed.log_path)
    assert path.with_name(f"{path.name}.damaged-0").read_bytes() == damaged
    assert verify(child.log_path).passed


def test_an_evaluation_that_is_stopped_goes_on_from_its_turns(tmp_path: Path) -> None:
    """SIGTERM without grace abandons the rollout: at most the call in flight is made again."""
    settings = ("val_dataset=steps:TASKS", "eval_every=1", "max_batches=1", "grace_seconds=0")
    observer = SignalAt("request:before:sample", 3, signal.SIGTERM, tmp_path / "when.txt")
    assert run_child(steps(tmp_path, *settings, observer=observer)) == 128 + signal.SIGTERM
    assert read_journal(tmp_path / "run").run.state is State.MAYBE_EVALUATE
    child = steps(tmp_path, *settings)
    assert run_child(child) == 0, child.output
    assert re.search(r"kept: 0 of 6 eval rollouts, [34] turns of unfinished ones", child.output)
    first = samples(child)[:4]
    assert all(samples(child).count(call) <= 1 + (call == first[3]) for call in first)
    assert read_journal(child.log_path).run.batches[0].results[State.MAYBE_EVALUATE]["replay_mismatches"] == 0


@pytest.mark.parametrize("concurrency", [1, 4])
def test_parallel_calls_of_an_agent_are_replayed_by_what_they_ask(concurrency: int, tmp_path: Path) -> None:
    """Killed with some of ten calls a rollout answered; whichever come first in the resume, no answered one is paid.

    Of four rollouts at once the first 20 samples are all of first turns, and none of them need be answered yet; but the
    22nd is of a second turn, which is asked for once the first is answered.
    """
    settings = ("agent=steps:side_by_side", f"concurrency={concurrency}")
    undisturbed = steps(tmp_path / "undisturbed", *settings)
    assert run_child(undisturbed) == 0
    folder = tmp_path / "killed"
    for number in (4, 5, 21):
        child = steps(folder, *settings, observer=KillAt("request:after:sample", number))
        assert run_child(child) == -9
    answered = [
        AnsweredCall.from_json(line)
        for path in (folder / "run" / "turns").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert answered
    before = len(samples(child))
    child = steps(folder, *settings)
    assert run_child(child) == 0, child.output
    seeds = {call_seed(42, call.key, call.attempt, call.prompt_tokens, call.repeat) for call in answered}
    assert not seeds & {seed for _, seed in samples(child)[before:]}
    assert outcome_of_run(child.log_path) == outcome_of_run(undisturbed.log_path)


def test_random_kills_of_a_five_turn_agent_cost_the_calls_in_flight_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The ledger measures it: chaos fails as soon as a process asks again for a turn that an earlier one stored."""
    monkeypatch.chdir(AGENTS)
    concurrency, kills = 2, 20
    settings = (*FIXTURE_D, *STEPS, f"concurrency={concurrency}")
    code = main(["chaos", f"kills={kills}", "seed=42", f"log_path={tmp_path / 'chaos'}", *settings])
    told = capfd.readouterr()
    assert code == 0, told.out + told.err
    passed = re.search(r"^PASS (\d+) kills", told.out, re.MULTILINE)
    calls = re.search(r"^model calls: ([\d,]+), where .* make ([\d,]+)", told.out, re.MULTILINE)
    assert passed is not None
    assert calls is not None
    made, needed = (int(number.replace(",", "")) for number in calls.groups())
    assert 0 <= made - needed <= concurrency * int(passed[1])
