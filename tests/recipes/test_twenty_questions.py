"""The game: what each move is answered, what ends it, and that helpers may live behind endpoints of their own."""

import pytest

from orchestrator.recipes import twenty_questions
from orchestrator.recipes.twenty_questions import INSTRUCTION, MOVES, answer, entities, search, train
from orchestrator.rollouts.agents import load_agent
from orchestrator.testing.scripted import scripted_llm

DOG = next(entity for entity in entities() if entity["entity"] == "dog")


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        (("ask is it an animal?", "search animal loud", "guess dog"), 1.0),
        (("guess Dog.",), 1.0),
        (("guess cow",), 0.0),
        (("what is it",), -0.25),
        (("ask",), -0.25),
        (("ask large?",) * MOVES, 0.0),
    ],
)
async def test_only_the_right_guess_wins(replies: tuple[str, ...], reward: float) -> None:
    agent = load_agent("orchestrator.recipes.twenty_questions:agent")
    with scripted_llm(*replies) as model:
        assert await agent(DOG, model.llm) == reward
    assert len(model.requests) == len(replies)
    told = [message["content"] for message in model.requests[-1]["messages"] if message["role"] == "user"]
    assert told == [INSTRUCTION, "yes", "cow, dog"][: len(replies)] or set(told[1:]) <= {"no"}


async def test_helpers_may_be_models_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the player's calls go to the trained model."""
    agent = load_agent("orchestrator.recipes.twenty_questions:agent")
    with (
        scripted_llm("ask does it bark?", "search things that bark", "guess dog") as player,
        scripted_llm("Yes, it does.") as answerer,
        scripted_llm("dogs, seals") as finder,
    ):
        for role, helper in {"ANSWERER": answerer, "SEARCH": finder}.items():
            monkeypatch.setenv(f"{role}_URL", helper.llm.endpoint)
            monkeypatch.setenv(f"{role}_KEY", helper.llm.api_key or "")
        assert await agent(DOG, player.llm) == 1.0
    told = [message["content"] for message in player.requests[-1]["messages"] if message["role"] == "user"]
    assert told == [INSTRUCTION, "Yes, it does.", "dogs, seals"]
    assert "dog" in answerer.requests[0]["messages"][0]["content"]
    assert "dog" not in finder.requests[0]["messages"][0]["content"]


def test_the_scripted_helpers_know_the_facts() -> None:
    assert [
        answer(DOG, question) for question in ("animal?", "Is it a thing?", "is it LARGE?", "is it loud", "old?")
    ] == [
        "yes",
        "no",
        "no",
        "yes",
        "unknown",
    ]
    assert search("animal, loud") == "cow, dog"
    assert search("old") == "cow, elk, dog, ant, jet, bed, fan, key"


def test_the_splits_share_no_entity_and_every_entity_can_be_told_from_the_others() -> None:
    assert {each["entity"] for each in train()} | {each["entity"] for each in twenty_questions.test()} == {
        each["entity"] for each in entities()
    }
    assert not {each["entity"] for each in train()} & {each["entity"] for each in twenty_questions.test()}
    facts = [tuple(value for key, value in each.items() if key not in {"entity", "split"}) for each in entities()]
    assert len(set(facts)) == len(facts)
    questions = 1 + len(DOG.keys() - twenty_questions.ABOUT)
    assert questions < MOVES
