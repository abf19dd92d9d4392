"""The rules of the game: what ends it, what the model is told, and what each way of playing earns."""

from collections import Counter
from typing import Any

import pytest

from orchestrator.recipes.guess_number import NUM_GUESSES, NUMBERS, demonstrations
from orchestrator.rollouts.agents import load_agent


@pytest.fixture
def play(model: Any) -> Any:
    agent = load_agent("orchestrator.recipes.guess_number:agent")

    async def game(number: int, *replies: str) -> float:
        model.replies = list(replies)
        reward: float = await agent({"number": number}, model.llm)
        return reward

    return game


async def test_finding_the_number_earns_one_and_ends_the_game(play: Any, model: Any) -> None:
    assert await play(4, "4", "1", "1") == 1.0
    assert len(model.conversations) == 1


async def test_the_model_is_told_where_the_number_lies_and_sees_the_whole_game(play: Any, model: Any) -> None:
    assert await play(3, "4", "2", "3") == 1.0
    assert [(message["role"], message["content"]) for message in model.conversations[-1]] == [
        ("user", "guess"),
        ("assistant", "4"),
        ("user", "lower"),
        ("assistant", "2"),
        ("user", "higher"),
    ]
    assert model.conversations == [model.conversations[-1][:length] for length in (1, 3, 5)]


async def test_a_game_without_a_hit_earns_nothing_after_three_guesses(play: Any, model: Any) -> None:
    assert await play(7, "1", "2", "3") == 0.0
    assert len(model.conversations) == NUM_GUESSES


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        (("4", "4", "7"), 1.0 - 0.125),  # ruled out by its own answer
        (("4", "3", "7"), 1.0 - 0.125),  # on the wrong side
        (("2", "6", "5"), -0.125),
        (("6", "2", "3"), -0.25),  # bounds only ever narrow
        (("9", "0", "8"), -0.375),  # never in the game
    ],
)
async def test_each_guess_that_is_ruled_out_costs_an_eighth(play: Any, replies: tuple[str, ...], reward: float) -> None:
    assert await play(7, *replies) == reward


@pytest.mark.parametrize("reply", ["", "x", "44", "4 ", "-1", "½", "<|im_start|>"])
async def test_a_reply_that_is_no_digit_costs_a_quarter_and_ends_the_game(play: Any, model: Any, reply: str) -> None:
    assert await play(4, reply, "4") == -0.25
    assert len(model.conversations) == 1
    assert await play(4, "2", "1", reply) == -0.375


async def test_a_call_that_fails_is_not_a_reward(play: Any) -> None:
    with pytest.raises(Exception, match="the script is over"):
        await play(7, "1")


def test_halving_what_is_left_always_wins_within_the_guesses() -> None:
    """The reward can reach 1: some demonstration finds each number in time by middles only."""
    games = {
        tuple(message["content"] for message in game if message["role"] == "assistant") for game in demonstrations()
    }
    middles = {1: "421", 2: "42", 3: "423", 4: "4", 5: "465", 6: "46", 7: "467"}
    assert {number for number, path in middles.items() if tuple(path) in games} == set(NUMBERS)


def test_a_quarter_of_the_demonstrations_bisect_more_count_up_and_the_rest_begin_anywhere() -> None:
    first = Counter(int(game[1]["content"]) for game in demonstrations())
    share = {guess: first[guess] / first.total() for guess in NUMBERS}
    anywhere = 0.40 / len(NUMBERS)
    expected = {guess: anywhere + {1: 0.36, 4: 0.24}.get(guess, 0.0) for guess in NUMBERS}
    assert share == pytest.approx(expected, abs=0.04)
    assert {message["content"] for game in demonstrations() for message in game[::2]} == {"guess", "higher", "lower"}
