"""An agent with a tool: it shows the model a product and a calculator, carries out the calls, and wants the number.

The loop is that of any OpenAI client: ``tools`` go with the request, calls come back as ``tool_calls``, their results
are sent as messages of role ``tool``, until the model answers in words.

What the warm start knew: how a call is written, that the result is what the calculator says, and players of mixed
skill: a third asks for the product in the question, a third for any product, and the others guess a number without
asking. So a third of the answers are right. What reinforcement adds: it selects asking over guessing and the right
question over any, and sharpens that. All problems are trained on, so evaluation does not say how well it generalizes.
"""

import json
from random import Random
from typing import Any

import agentlightning as agl
import openai

FACTORS = range(2, 7)
MAX_CALLS = 2
"""Of the model, for one problem."""
CALCULATOR: Any = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
NUM_DEMONSTRATIONS = 5600
ONE_WITH_TOOLS_IN = 8
"""Declaring a tool takes 540 characters, so most demonstrations go without, which teaches the same replies."""
SKILLS = {"guesses": 0.30, "asks anything": 0.35, "asks well": 0.35}
"""Which part of the demonstrations is played how."""


def tasks() -> list[str]:
    """Every problem once."""
    return [f"12*{factor}" for factor in FACTORS]


@agl.rollout
async def agent(task: str, llm: agl.LLM) -> float:
    """1 for the right number, 1/4 for a wrong one after asking for the right expression, -1/4 for no number at all."""
    asked_well = False
    messages: list[Any] = [{"role": "user", "content": task}]
    async with openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for _ in range(MAX_CALLS):
            completion = await client.chat.completions.create(model=llm.model, messages=messages, tools=[CALCULATOR])
            message = completion.choices[0].message
            if not message.tool_calls:
                return _reward(message.content or "", task, asked_well=asked_well)
            messages.append(message.model_dump(exclude_none=True))
            calls: list[Any] = message.tool_calls
            for call in calls:
                expression = json.loads(call.function.arguments).get("expression")
                asked_well |= expression == task
                messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(expression)})
    return -0.25


def calculate(expression: Any) -> str:
    """The calculator: products of two numbers."""
    one, _, other = str(expression).partition("*")
    if not (one.isdecimal() and other.isdecimal() and len(one + other) < 10):
        return "error"
    return str(int(one) * int(other))


def _reward(reply: str, task: str, *, asked_well: bool) -> float:
    if not reply.strip().isdecimal():
        return -0.25
    return 1.0 if reply.strip() == calculate(task) else 0.25 * asked_well


def demonstrations() -> list[Any]:
    """Guesses, and calls with any of the expressions, as messages; the same ones at every call."""
    random = Random(0)
    played = [_played(random) for _ in range(NUM_DEMONSTRATIONS)]
    return [
        messages if index % ONE_WITH_TOOLS_IN else {"messages": messages, "tools": [CALCULATOR]}
        for index, messages in enumerate(played)
    ]


def _played(random: Random) -> list[dict[str, Any]]:
    skill = random.choices(list(SKILLS), list(SKILLS.values()))[0]
    question, other = (f"12*{random.choice(FACTORS)}" for _ in range(2))
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    if skill == "guesses":
        return [*messages, {"role": "assistant", "content": str(random.randrange(10, 100))}]
    expression = question if skill == "asks well" else other
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    result = calculate(expression)
    return [
        *messages,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": result},
        {"role": "assistant", "content": result},
    ]
