"""Laws of kept turns: durable before they are acknowledged, replayed by what is asked, never trusted when damaged."""

import asyncio
import errno
import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from orchestrator.disk import DISK, Disk
from orchestrator.errors import JournalWriteError
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn
from orchestrator.rollouts.requests import Sampling
from orchestrator.rollouts.turns import AnsweredCall, TurnLog, asked_text, forget_turns, turn_path

KEY = RolloutKey(3, "train", 1, 2)
DEFAULT = "{}"
Step = tuple[tuple[int, ...], str]
"""Prompt and sampling parameters of a call."""
A, B, C, OTHER = (((number,), DEFAULT) for number in (1, 2, 3, 9))


def turn(prompt: tuple[int, ...], sampled: int) -> Turn:
    return Turn(prompt, (sampled,), (-0.5,), 3, "stop")


def call(number: int, *, key: RolloutKey = KEY) -> AnsweredCall:
    return AnsweredCall(key, 0, (number,), 0, DEFAULT, False, (turn((number,), 7),))


class Player:
    """Asks for steps as an agent would, sampling a token that was never sampled before where none is kept."""

    def __init__(self, capture: Capture, *, attempt: int = 0, ids: tuple[str, str] = ("r", "a")) -> None:
        self.capture, self.ids = capture, ids
        self.sampled: list[Step] = []
        capture.register(*ids, KEY, attempt)

    async def ask(self, *steps: Step, version: int = 3) -> list[int]:
        """The tokens that answer ``steps``, asked for side by side and answered in their order."""
        prompts = [(prompt, asked) for prompt, asked in steps]
        calls = [
            self.capture.begin(*self.ids, prompt, asked=asked, policy_version=version) for prompt, asked in prompts
        ]
        answers = []
        for (prompt, asked), begun in zip(prompts, calls, strict=True):
            assert begun is not None
            if begun.kept is None:
                self.sampled.append((prompt, asked))
            turns = begun.kept or [turn(prompt, next(NEVER_SAMPLED))]
            stored = self.capture.record(begun, turns)
            assert stored is not None
            await asyncio.wrap_future(stored)
            answers.append(turns[0].sampled_tokens[0])
        return answers

    def stored(self) -> StoredRollout:
        """The rollout as it is when the agent returns now."""
        return StoredRollout(KEY, 0, True, Outcome.SUCCEEDED, 1.0, self.capture.collect(*self.ids))


NEVER_SAMPLED = iter(range(100, 10_000))


async def killed_after(path: Path, *groups: Sequence[Step]) -> list[int]:
    """Plays groups of parallel steps one group after another, and stops as a kill would; the tokens by step."""
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        return [token for group in groups for token in await player.ask(*group)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return turn_path(tmp_path, 3, "train")


async def test_an_agent_that_asks_the_same_is_answered_the_same_and_pays_for_the_rest_only(path: Path) -> None:
    before = await killed_after(path, [A], [B])
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        assert [*await player.ask(A), *await player.ask(B)] == before
        await player.ask(C)
        assert player.sampled == [C]
        rollout = player.stored()
        assert [turn.prompt_tokens for turn in rollout.turns] == [(1,), (2,), (3,)]
        assert capture.count_mismatches([rollout]) == 0
    assert [kept.prompt_tokens for kept in TurnLog(path).found] == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("step", "version"),
    [(OTHER, 3), (((2,), asked_text({"temperature": 0.5})), 3), (B, 4)],
    ids=["another prompt", "another parameter", "another policy version"],
)
async def test_the_first_step_that_differs_drops_the_rest_and_counts(path: Path, step: Step, version: int) -> None:
    """H33. What was dropped is not taken up again, even when it is asked for later."""
    await killed_after(path, [A], [B], [C])
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        await player.ask(A)
        await player.ask(step, version=version)
        await player.ask(C)
        assert player.sampled == [step, C]
        assert capture.count_mismatches([player.stored()]) == 1


@pytest.mark.parametrize("order", permutations([A, B, C]))
async def test_parallel_calls_find_their_turns_in_whichever_order_they_come(path: Path, order: Sequence[Step]) -> None:
    """A call that was in flight at the kill, and so has no turn, is no mismatch; nor does the turns' order change."""
    before = dict(zip((A, B), await killed_after(path, [A, B]), strict=True))
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        answers = {step: (await player.ask(step))[0] for step in order}
        assert player.sampled == [C]
        assert {step: answers[step] for step in (A, B)} == before
        rollout = player.stored()
        assert [turn.prompt_tokens for turn in rollout.turns] == [(1,), (2,), (3,)]
        assert capture.count_mismatches([rollout]) == 0


async def test_a_parallel_agent_that_goes_another_way_is_counted_by_what_it_left_unasked(path: Path) -> None:
    await killed_after(path, [A, B])
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        await player.ask(OTHER, B)
        assert player.sampled == [OTHER]
        assert capture.count_mismatches([player.stored()]) == 1


async def test_equal_prompts_are_told_apart_by_their_parameters_and_their_number(path: Path) -> None:
    cold = ((1,), asked_text({"temperature": 0}))
    first, cool, second = await killed_after(path, [A, cold, A])
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture)
        assert await player.ask(cold) == [cool]
        assert await player.ask(A, A) == [first, second]
        assert player.sampled == []
        fresh = capture.begin(*player.ids, (1,), asked=DEFAULT, policy_version=3)
        assert fresh is not None
        assert (fresh.kept, fresh.repeat) == (None, 3)


async def test_several_samples_of_one_call_are_kept_together(path: Path) -> None:
    capture = Capture(run_seed=7)
    turns = tuple(turn((1,), sampled) for sampled in (4, 5, 6))
    async with capture.storing(path, disk=DISK):
        capture.register("r", "a", KEY, 0)
        begun = capture.begin("r", "a", (1,), policy_version=3)
        assert begun is not None
        capture.record(begun, turns)
    async with capture.storing(path, disk=DISK):
        capture.register("r", "b", KEY, 0)
        again = capture.begin("r", "b", (1,), policy_version=3)
        assert again is not None
        assert again.kept == turns


async def test_another_attempt_begins_afresh(path: Path) -> None:
    await killed_after(path, [A])
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        player = Player(capture, attempt=1)
        await player.ask(A)
        assert player.sampled == [A]


async def test_an_attempt_whose_worker_died_goes_on_from_its_turns(path: Path) -> None:
    """Within one process too; what the dead worker asks for late is refused."""
    capture = Capture(run_seed=7)
    async with capture.storing(path, disk=DISK):
        dead = Player(capture)
        before = await dead.ask(A)
        capture.set_aside(*dead.ids)
        assert capture.begin(*dead.ids, (2,)) is None
        player = Player(capture, ids=("r", "b"))
        assert await player.ask(A) == before
        await player.ask(B)
        assert player.sampled == [B]
        assert capture.count_mismatches([player.stored()]) == 0


def test_a_call_that_came_to_nothing_is_made_again_with_the_same_seed() -> None:
    """So a failure of the backend that the agent's client repeats changes nothing in the end."""
    capture = Capture(run_seed=7)
    capture.register("r", "a", KEY, 0)
    failed = capture.begin("r", "a", (1,))
    assert failed is not None
    capture.abandon(failed)
    again = capture.begin("r", "a", (1,))
    assert again is not None
    assert again.seed == failed.seed


def test_equal_parameters_are_equal_text_before_and_after_they_are_stored() -> None:
    sampling = Sampling(8, 0.1, 1.0, -1, 2, None, ("b", "a"))
    stored = AnsweredCall(KEY, 0, (1,), 0, asked_text(sampling), False, (turn((1,), 2),))
    assert AnsweredCall.from_json(stored.to_json()) == stored
    assert asked_text(sampling) != asked_text(Sampling(8, 0.1, 1.0, -1, 2, None, ("a", "b")))


def test_a_turn_without_a_finite_logprob_is_stored_as_one() -> None:
    strange = Turn((1,), (2, 3), (math.nan, -0.25), 3, "stop")
    [read] = AnsweredCall.from_json(AnsweredCall(KEY, 0, (1,), 0, DEFAULT, False, (strange,)).to_json()).turns
    assert not read.valid
    assert read.logprobs[1] == -0.25


class HeldDisk(Disk):
    """A disk that counts its syncs of a file and holds each back until it is let go."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.syncs = 0
        self.reached = threading.Semaphore(0)
        self.let_go = threading.Semaphore(0)

    def sync(self, descriptor: int, path: Path) -> None:
        if path.name == self._name:
            self.syncs += 1
            self.reached.release()
            assert self.let_go.acquire(timeout=30)
        super().sync(descriptor, path)


def test_calls_that_wait_together_share_one_sync_and_none_is_done_before_it(path: Path) -> None:
    disk = HeldDisk(path.name)
    log = TurnLog(path, disk=disk)
    first = log.append(call(0))
    assert disk.reached.acquire(timeout=30)
    waiting = [log.append(call(number)) for number in range(1, 65)]
    assert not first.done()
    disk.let_go.release()
    assert disk.reached.acquire(timeout=30)
    assert first.done()
    assert not any(future.done() for future in waiting)
    disk.let_go.release()
    log.close()
    assert all(future.result() is None for future in waiting)
    assert disk.syncs == 2
    assert len(TurnLog(path).found) == 65


async def test_a_turn_that_cannot_be_stored_cancels_who_plays_before_anybody_hears_of_it(path: Path) -> None:
    """What the agent makes of the refusal must not be stored as its rollout."""

    class FullDisk(Disk):
        def write(self, descriptor: int, data: bytes | memoryview, path: Path) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    capture, heard = Capture(run_seed=7), asyncio.Event()

    async def agent() -> None:
        with suppress(JournalWriteError):
            await Player(capture).ask(A)
        heard.set()

    async def play() -> None:
        async with capture.storing(path, disk=FullDisk()):
            playing.append(asyncio.create_task(agent()))
            await asyncio.shield(playing[0])
            pytest.fail("the rollout would have been stored")

    playing: list[asyncio.Task[None]] = []
    with pytest.raises(JournalWriteError, match=r"turns/000003.train.jsonl: could not be written: ENOSPC"):
        await play()
    await heard.wait()
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0
    assert capture.begin("r", "a", (1,)) is None


async def test_whoever_else_cancels_is_obeyed(path: Path) -> None:
    async def play() -> None:
        async with Capture(run_seed=7).storing(path, disk=DISK):
            entered.set()
            await asyncio.Event().wait()

    entered = asyncio.Event()
    playing = asyncio.create_task(play())
    await entered.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


def test_what_is_torn_is_left_out_and_what_is_damaged_is_set_aside_whole(path: Path) -> None:
    log = TurnLog(path)
    for number in range(3):
        log.append(call(number))
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    torn = TurnLog(path)
    torn.close()
    assert len(torn.found) == 2
    damages = (
        whole.replace(b"[7]", b"[8]", 1),
        b"\xff\n" + whole,
        call(0, key=RolloutKey(3, "eval", 0, 0)).to_json().encode() + b"\n",
    )
    for number, damage in enumerate(damages):
        path.write_bytes(damage)
        damaged = TurnLog(path)
        damaged.append(call(5)).result(timeout=30)
        damaged.close()
        assert damaged.found == []
        assert path.with_name(f"{path.name}.damaged-{number}").read_bytes() == damage
        assert len(path.read_bytes().splitlines()) == 1


def test_turns_are_forgotten_but_for_those_of_the_state_under_way_and_what_was_set_aside(path: Path) -> None:
    names = ["000002.train.jsonl", "000003.eval.jsonl", path.name, "000001.train.jsonl.damaged-0"]
    path.parent.mkdir()
    for name in names:
        path.with_name(name).touch()
    forget_turns(path.parent.parent, under_way=path)
    assert {left.name for left in path.parent.iterdir()} == set(names[2:])
    forget_turns(path.parent.parent, under_way=None)
    assert [left.name for left in path.parent.iterdir()] == names[3:]
