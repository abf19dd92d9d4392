"""What is trained: how the agent asks the model, and what a reply is worth. Replace any of it with your own."""

from random import Random

import agentlightning as agl
from openai import AsyncOpenAI


@agl.rollout
async def agent(task: dict[str, str], llm: agl.LLM) -> float:
    """One rollout of one line of tasks.jsonl; it may call the model, tools and services as often as it likes."""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = await client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": task["question"]}]
        )
    return reward(completion.choices[0].message.content or "", task["answer"])


def reward(reply: str, answer: str) -> float:
    """1 where the reply is the answer, else 0; rewards of one task are compared, so any finite numbers will do."""
    return float(reply.strip() == answer)


def demonstrations() -> list[list[dict[str, str]]]:
    """What the built-in model imitates first: it names either number, whichever. A model that can read needs none."""
    random = Random(0)
    return [_either(random.sample("123456789", 2), random) for _ in range(3200)]


def _either(digits: list[str], random: Random) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": " or ".join(digits)},
        {"role": "assistant", "content": random.choice(digits)},
    ]
