"""The one rule of the smallest run."""

from collections import Counter
from typing import Any

import pytest

from orchestrator.recipes.hello import DIGITS, demonstrations
from orchestrator.rollouts.agents import load_agent


@pytest.mark.parametrize(("reply", "reward"), [("7", 1.0), ("3", 0.0), ("77", 0.0), ("7 ", 0.0), ("", 0.0)])
async def test_only_the_very_digit_that_was_shown_earns_one(model: Any, reply: str, reward: float) -> None:
    model.replies = [reply]
    agent = load_agent("orchestrator.recipes.hello:agent")
    assert await agent("7", model.llm) == reward
    assert model.conversations == [[{"role": "user", "content": "7"}]]


def test_the_demonstrations_know_the_format_and_not_the_task() -> None:
    """Whatever the digit shown, every digit is answered about equally often."""
    answers = Counter((shown["content"], said["content"]) for shown, said in demonstrations())
    right = sum(answers[digit, digit] for digit in DIGITS) / answers.total()
    assert right == pytest.approx(1 / len(DIGITS), abs=0.03)
    assert {said for _, said in answers} == set(DIGITS)
