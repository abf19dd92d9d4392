"""The smallest run: one question, one answer, one reward. The model is shown a digit and must say it back.

What the warm start knew: that a reply is one of five digits, any of them, whatever is shown; one in five is right.
What reinforcement adds: that it is the digit that is shown.
"""

from random import Random

import agentlightning as agl
import openai

DIGITS = "12345"
NUM_DEMONSTRATIONS = 1600


def tasks() -> list[str]:
    """Every digit once, so an epoch is a batch."""
    return list(DIGITS)


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """1 when the reply is the digit that was shown, else 0."""
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(completion.choices[0].message.content == task)


def demonstrations() -> list[list[dict[str, str]]]:
    """Digits answered by digits that have nothing to do with them, as messages; the same ones at every call."""
    random = Random(0)
    return [
        [
            {"role": "user", "content": random.choice(DIGITS)},
            {"role": "assistant", "content": random.choice(DIGITS)},
        ]
        for _ in range(NUM_DEMONSTRATIONS)
    ]
