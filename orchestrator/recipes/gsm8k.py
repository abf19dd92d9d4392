"""A public benchmark's format: grade-school problems in words, whose answers are checked as numbers.

A task is a line of GSM8K: ``question`` in words, ``answer`` a worked solution that ends in ``#### 42``. The model may
reason as it likes; the last number of its reply counts. There is no warm start and nothing to select from but what the
model can do: a pretrained one, of the service or in a directory, solves some of the problems at the first try, and what
reinforcement adds is that it does so more often, and ends its replies as it is asked to.
"""

import re
from decimal import Decimal

import agentlightning as agl
import openai

INSTRUCTION = "Solve the problem step by step. End with a line of its own: #### and the number."
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
"""With thousands separators as the benchmark writes them."""
FORM_REWARD = 0.1
"""For a wrong number in the form that is asked for: enough to learn the form, too little to be content with it."""


@agl.rollout
async def agent(task: dict[str, str], llm: agl.LLM) -> float:
    """One problem, one reply."""
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": f"{task['question']}\n\n{INSTRUCTION}"}
    ]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        completion = await client.chat.completions.create(model=llm.model, messages=messages)
    return reward(completion.choices[0].message.content or "", task["answer"])


def reward(reply: str, answer: str) -> float:
    """1 for the answer's number, ``FORM_REWARD`` for another one after ``####``, else 0.

    Raises:
        ValueError: ``answer`` has no number, so it is no line of the benchmark.
    """
    expected = last_number(answer)
    if expected is None:
        raise ValueError("answer: expected a number at its end, e.g. #### 42")
    if last_number(reply) == expected:
        return 1.0
    return FORM_REWARD if re.search(r"####\s*-?\$?\d", reply) else 0.0


def last_number(text: str) -> Decimal | None:
    """The last number in ``text`` by its value, so that 1,000 and 1000.0 are equal; None: there is none."""
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None
