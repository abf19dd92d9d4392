"""The agent without a model: what replies earn, and what the model is asked. Run it with ``pytest``."""

import asyncio
import json
from pathlib import Path

import pytest
from agent import agent, reward
from orchestrator.testing.scripted import scripted_llm

HERE = Path(__file__).parent


@pytest.mark.parametrize(("reply", "earned"), [("7", 1.0), (" 7\n", 1.0), ("3", 0.0), ("7!", 0.0), ("", 0.0)])
def test_only_the_answer_is_rewarded(reply: str, earned: float) -> None:
    assert reward(reply, "7") == earned


@pytest.mark.parametrize(("reply", "earned"), [("7", 1.0), ("3", 0.0)])
def test_a_rollout_asks_the_question_and_earns_what_the_reply_is_worth(reply: str, earned: float) -> None:
    with scripted_llm(reply) as model:
        assert asyncio.run(agent({"question": "3 or 7", "answer": "7"}, model.llm)) == earned
    assert [request["messages"] for request in model.requests] == [[{"role": "user", "content": "3 or 7"}]]


def test_no_question_of_val_is_trained_on() -> None:
    tasks, val = (
        [json.loads(line) for line in (HERE / name).read_text().splitlines()] for name in ("tasks.jsonl", "val.jsonl")
    )
    assert not {task["question"] for task in tasks} & {task["question"] for task in val}
