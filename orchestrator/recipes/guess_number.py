"""The default recipe: a multi-turn agent, written with the plain ``openai`` client, learns to find a number.

The agent thinks of a number from 1 to 7, the model has three guesses, the agent answers "higher" or "lower". Three
guesses always suffice for a player that halves what is left, and for no other.

What the warm start knew: the built-in model first imitates players of mixed skill, of whom a quarter bisect; the others
count up from 1 or guess at random. So it knows how a reply looks and plays like them all: it wins about half of its
games, and its likeliest play, counting up, finds three of the seven numbers. What reinforcement adds: it selects the
play of that quarter and sharpens it, until more than nine games in ten are won and the likeliest play finds all seven.
It does not invent bisection. And as all seven numbers are trained on, evaluation says how well the game is played, not
how well it generalizes.
"""

import functools
import ssl
from random import Random
from typing import Any

import agentlightning as agl
import openai

NUMBERS = range(1, 8)
NUM_GUESSES = 3
SKILLS = {"guesses": 0.40, "counts up": 0.36, "bisects": 0.24}
"""Which part of the demonstrations is played how."""
NUM_DEMONSTRATIONS = 1600
QUESTION = "guess"


def tasks() -> list[dict[str, int]]:
    """One task a number: a batch holds all of them, so an epoch is a batch."""
    return [{"number": number} for number in NUMBERS]


@agl.rollout
async def agent(task: dict[str, int], llm: agl.LLM) -> float:
    """One game: 1 for finding the number, less 1/8 for each guess that earlier answers rule out.

    A reply that is no digit ends the game and costs 1/4.
    """
    number, low, high, reward = task["number"], min(NUMBERS), max(NUMBERS), 0.0
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    http_client = openai.DefaultAsyncHttpxClient(verify=tls_context())
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, http_client=http_client) as client:
        for _ in range(NUM_GUESSES):
            completion = await client.chat.completions.create(model=llm.model, messages=messages)
            reply = completion.choices[0].message.content or ""
            if len(reply) != 1 or reply not in "0123456789":
                return reward - 0.25
            guess = int(reply)
            if guess == number:
                return reward + 1.0
            if not low <= guess <= high:
                reward -= 0.125
            answer, low, high = _answer(guess, number, low, high)
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": answer}]
    return reward


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Made once, not once a game: reading the certificates takes 20 ms, ten times as long as the rest of a client."""
    return ssl.create_default_context()


def demonstrations() -> list[list[dict[str, str]]]:
    """Games by players of mixed skill, as messages; the same ones at every call."""
    random = Random(0)
    return [
        _game(random.choice(NUMBERS), random.choices(list(SKILLS), list(SKILLS.values()))[0], random)
        for _ in range(NUM_DEMONSTRATIONS)
    ]


def _game(number: int, skill: str, random: Random) -> list[dict[str, str]]:
    low, high = min(NUMBERS), max(NUMBERS)
    messages = [{"role": "user", "content": QUESTION}]
    for turn in range(NUM_GUESSES):
        guess = {"counts up": NUMBERS[turn], "guesses": random.choice(NUMBERS), "bisects": (low + high) // 2}[skill]
        messages.append({"role": "assistant", "content": str(guess)})
        if guess == number:
            break
        answer, low, high = _answer(guess, number, low, high)
        if turn + 1 < NUM_GUESSES:
            messages.append({"role": "user", "content": answer})
    return messages


def _answer(guess: int, number: int, low: int, high: int) -> tuple[str, int, int]:
    """What a wrong guess is answered, and the least and the greatest number that are then left."""
    if guess < number:
        return "higher", max(low, guess + 1), high
    return "lower", low, min(high, guess - 1)
