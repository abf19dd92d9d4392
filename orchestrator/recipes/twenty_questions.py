"""A player finds out which entity is meant. It may ask an answerer and a search, which are helpers and are not trained.

The player is a plain OpenAI client on the trained model. Answerer and search are functions of this file by default,
which know the facts of ``twenty_questions.csv``. Each may be any OpenAI-compatible endpoint instead, named in the
environment: ``ANSWERER_URL=http://.../v1``, ``ANSWERER_MODEL`` and ``ANSWERER_KEY``, and ``SEARCH_URL`` likewise. Only
what goes to ``llm.endpoint`` is trained, so the same holds for a crew of agents: give its player that endpoint and its
other members their own. One written with CrewAI, which needs other versions of the libraries, lives behind a small
service in an environment of its own; ``tests/agents/crew.py`` is this function for it.

What the warm start knew: how moves are spelled, the names, and players of mixed skill, of whom not half ask before
they guess; so it wins less than half of its games. What reinforcement adds: it selects the play of those and sharpens
it. It invents no question, and it does not generalize: entities of the test split, which are in the demonstrations, are
never the answer in training, so guessing them is trained away, as ``test/unseen/reward_mean`` shows.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import agentlightning as agl
import openai

Entity = dict[str, str]
"""A row of the CSV file: entity, category, split, and facts that are yes or no."""
ABOUT = {"entity", "category", "split"}
"""The columns that are no facts."""
MOVES = 6
"""Of one game, the guess among them; where helpers are models, twenty."""
INSTRUCTION = "What is it? ask, search or guess"
SKILLS = {"guesses": 0.20, "searches": 0.10, "asks once": 0.25, "asks first": 0.45}
"""Which part of the demonstrations is played how."""
NUM_DEMONSTRATIONS = 8000


def entities() -> list[Entity]:
    """All of them, of both splits."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def train() -> list[Entity]:
    """The entities that are played in training, a task each."""
    return [entity for entity in entities() if entity["split"] == "train"]


def test() -> list[Entity]:
    """Those that are only evaluated."""
    return [entity for entity in entities() if entity["split"] == "test"]


@agl.rollout
async def agent(task: Entity, llm: agl.LLM) -> float:
    """One game: 1 for the right guess, 0 for a wrong one or none, -1/4 for a reply that is no move, which ends it."""
    messages: list[Any] = [{"role": "user", "content": INSTRUCTION}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(MOVES):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            move, _, words = reply.strip().partition(" ")
            if move == "guess":
                return float(words.strip(" .").lower() == task["entity"])
            if move == "ask" and words:
                told = await _helped("ANSWERER", f"The secret is: {task['entity']}. Answer yes or no: {words}")
                told = told or answer(task, words)
            elif move == "search" and words:
                told = await _helped("SEARCH", f"Name things that fit, separated by commas: {words}") or search(words)
            else:
                return -0.25
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": told}]
    return 0.0


def answer(entity: Entity, question: str) -> str:
    """The scripted answerer: it looks for a category or a fact in the question, and answers for the first it finds."""
    for word in _words(question):
        if word in {other["category"] for other in entities()}:
            return "yes" if entity["category"] == word else "no"
        if word in entity.keys() - ABOUT:
            return entity[word]
    return "unknown"


def search(words: str) -> str:
    """The scripted search: the names of all entities for which every word that it knows is true."""
    found = [entity["entity"] for entity in entities() if all(answer(entity, word) != "no" for word in _words(words))]
    return ", ".join(found) or "nothing"


async def _helped(role: str, request: str) -> str | None:
    """What the endpoint that the environment gives for ``role`` says; None: there is none."""
    address = os.environ.get(f"{role}_URL")
    if address is None:
        return None
    async with openai.AsyncOpenAI(base_url=address, api_key=os.environ.get(f"{role}_KEY", "none")) as client:
        completion = await client.chat.completions.create(
            model=os.environ.get(f"{role}_MODEL", "default"), messages=[{"role": "user", "content": request}]
        )
    return completion.choices[0].message.content or "unknown"


def _words(text: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in text.lower()).split()


def demonstrations() -> list[list[dict[str, str]]]:
    """Games by players of mixed skill, as messages; the same ones at every call."""
    random = Random(0)
    known = entities()
    return [
        _game(random.choice(known), random.choices(list(SKILLS), list(SKILLS.values()))[0], known, random)
        for _ in range(NUM_DEMONSTRATIONS)
    ]


def _game(secret: Entity, skill: str, known: Sequence[Entity], random: Random) -> list[dict[str, str]]:
    messages = [{"role": "user", "content": INSTRUCTION}]

    def move(words: str, told: str) -> None:
        messages.extend([{"role": "assistant", "content": words}, {"role": "user", "content": told}])

    categories = sorted({entity["category"] for entity in known})
    facts = sorted(secret.keys() - ABOUT)
    guess = random.choice(known)["entity"]
    if skill == "searches":
        category = random.choice(categories)
        move(f"search {category}", search(category))
        guess = random.choice([entity["entity"] for entity in known if entity["category"] == category])
    elif skill == "asks once":
        question = random.choice([*categories, *facts])
        move(f"ask {question}?", answer(secret, question))
    elif skill == "asks first":
        for category in categories[:-1]:
            move(f"ask {category}?", answer(secret, category))
            if secret["category"] == category:
                break
        for fact in facts:
            move(f"ask {fact}?", answer(secret, fact))
        guess = secret["entity"]
    return [*messages, {"role": "assistant", "content": f"guess {guess}"}]
