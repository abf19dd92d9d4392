"""The default recipe: a multi-turn agent, written with the plain ``openai`` client, learns to find a number by bisection.

The agent thinks of a number from 1 to 7, the model has three guesses, the agent answers "higher" or "lower". Three
guesses always suffice for a player that halves what is left, and for no other.

What the warm start knew: the built-in model first imitates players of mixed skill. Nearly half count up from 1, a third
guess at random, and a quarter bisect, so it knows how a reply looks, and every good move from having seen some make it.
What reinforcement adds: it selects that quarter and sharpens it. It does not invent bisection, and with only seven
numbers, all of them trained on, the evaluation says how well the game is played, not how well it generalizes.
"""

from random import Random
from typing import Any

import agentlightning as agl
import httpx
import openai

NUMBERS = range(1, 8)
NUM_GUESSES = 3
SKILLS = {"counts up": 0.45, "guesses": 0.30, "bisects": 0.25}
"""Which part of the demonstrations is played how."""
NUM_DEMONSTRATIONS = 1600
QUESTION = "guess"

OVERRIDES: dict[str, object] = {
    "agent": "orchestrator.recipes.guess_number:agent",
    "train_dataset": "orchestrator.recipes.guess_number:tasks",
    "val_dataset": "orchestrator.recipes.guess_number:tasks",
    "model_name": "tiny",
    "lora_rank": 0,
    "local.warm_start": "orchestrator.recipes.guess_number:demonstrations",
    "batch_size": len(NUMBERS),
    "group_size": 8,
    "n_epochs": 40,
    "max_tokens": 2,
    "loss_fn": "ppo",
    "clip_low_threshold": 0.8,
    "clip_high_threshold": 1.2,
    "num_epochs": 4,
    "num_substeps": 8,
    "learning_rate": 6e-4,
    "final_learning_rate": 3e-4,
}


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
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
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
            if guess < number:
                low, answer = max(low, guess + 1), "higher"
            else:
                high, answer = min(high, guess - 1), "lower"
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": answer}]
    return reward


def demonstrations() -> list[list[dict[str, str]]]:
    """Games by players of mixed skill, as messages; the same ones at every call."""
    random = Random(0)  # noqa: S311 - games, not secrets
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
        if guess < number:
            low, answer = max(low, guess + 1), "higher"
        else:
            high, answer = min(high, guess - 1), "lower"
        if turn + 1 < NUM_GUESSES:
            messages.append({"role": "user", "content": answer})
    return messages
