"""Takes prompts out of what a failed rollout says of its failure: exceptions like to quote what they choked on."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from orchestrator.rollouts.outcomes import Turn

MIN_STRETCH_CHARACTERS = 12
"""Shorter stretches of a prompt occur in any text; one that quotes so little of it tells nobody what it says."""
MIN_VALUE_CHARACTERS = 6
"""A text of a task that is shorter than a stretch counts where it is quoted whole, but not below this length."""


def prompts_of(task: Any, turns: Sequence[Turn], decode: Callable[[list[int]], str]) -> list[str]:
    """What a rollout was asked: each text of its ``task``, and every conversation without the model's own replies.

    ``turns`` are in the order that ``Capture.collect`` gives, so that a prompt comes right before those that extend it.
    """
    longest = [turn for turn, after in zip(turns, (*turns[1:], None), strict=False) if not _begins(turn, after)]
    replies = {decode(list(turn.sampled_tokens)) for turn in turns}
    replies = {reply for reply in replies if len(reply) >= MIN_STRETCH_CHARACTERS}
    conversations = []
    for turn in longest:
        text = decode(list(turn.prompt_tokens))
        for reply in sorted(replies, key=len, reverse=True):
            text = text.replace(reply, "\0")  # what the model said is no prompt, and often what an error is about
        conversations.append(text)
    return [*_texts(task), *conversations]


def without_prompts(text: str, prompts: Sequence[str]) -> str:
    """``text`` with every stretch that one of ``prompts`` holds too replaced by its length.

    Prompts are known in the escaped form of a ``repr`` as well. Takes the product of both lengths in the worst case.
    """
    forms = [form for prompt in prompts for form in (prompt, repr(prompt)[1:-1]) if len(form) >= MIN_VALUE_CHARACTERS]
    return "".join(_told(text, forms))


def _told(text: str, prompts: Sequence[str]) -> Iterator[str]:
    start = 0
    while start < len(text):
        length = max((_quoted_characters(text, start, prompt) for prompt in prompts), default=0)
        yield f"[prompt, {length} characters]" if length else text[start]
        start += length or 1


def _quoted_characters(text: str, start: int, prompt: str) -> int:
    """How many characters from ``start`` on are in ``prompt``; 0 where they are too few to tell."""
    length = min(MIN_STRETCH_CHARACTERS, len(prompt))
    if start + length > len(text) or text[start : start + length] not in prompt:
        return 0
    while start + length < len(text) and text[start : start + length + 1] in prompt:
        length += 1
    return length


def _begins(turn: Turn, after: Turn | None) -> bool:
    prompt = turn.prompt_tokens
    return after is not None and tuple(after.prompt_tokens[: len(prompt)]) == tuple(prompt)


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a task, whatever it is made of; names of fields are none."""
    match value:
        case str():
            yield value
        case dict():
            yield from (text for item in value.values() for text in _texts(item))
        case list() | tuple():
            yield from (text for item in value for text in _texts(item))
