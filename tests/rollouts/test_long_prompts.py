"""A prompt that takes long to make holds up nobody else's call."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from rollouts.characters import END, VOCABULARY, character_tokenizer
from tinker_cookbook.renderers import Message, get_renderer

from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.outcomes import RolloutKey, Turn
from orchestrator.rollouts.provider import LONG_PROMPT_CHARACTERS, Policy, Provider
from orchestrator.rollouts.rendering import Rendering, Tokens
from orchestrator.rollouts.requests import SamplingDefaults
from orchestrator.rollouts.tools import Tools
from orchestrator.testing import FakeSamplingClient

ENOUGH_SECONDS = 20


class SlowRendering(Rendering):
    """Makes no long prompt before it is told to."""

    go_on = threading.Event()

    def prompt_tokens(self, messages: Sequence[Message], tools: Tools, turns: Sequence[Turn] = ()) -> Tokens:
        """As ever, for prompts of fewer characters."""
        if len(messages[0]["content"]) >= LONG_PROMPT_CHARACTERS:
            assert self.go_on.wait(ENOUGH_SECONDS), "the other call was not served meanwhile"
        return super().prompt_tokens(messages, tools, turns)


async def test_a_call_is_served_while_another_ones_long_prompt_is_made() -> None:
    tokenizer = character_tokenizer()
    capture = Capture(run_seed=0)
    rendering = SlowRendering(get_renderer("qwen3_instruct", tokenizer), tokenizer)
    provider = Provider(rendering=rendering, capture=capture)
    client = FakeSamplingClient(lambda _prompt, _params: [VOCABULARY["7"], VOCABULARY[END]])
    provider.publish(Policy(client, 0, SamplingDefaults(8), SamplingDefaults(8)))

    async def ask(attempt_id: str, text: str) -> Any:
        capture.register("ro", attempt_id, RolloutKey(0, "train", 0, 0), 0)
        return await provider.complete("ro", attempt_id, [{"role": "user", "content": text}], {})

    long = asyncio.create_task(ask("long", "7" * LONG_PROMPT_CHARACTERS))
    await asyncio.sleep(0)
    short = await ask("short", "7")
    rendering.go_on.set()
    assert short.replies[0].text == (await long).replies[0].text == "7"
    assert (await long).num_prompt_tokens > LONG_PROMPT_CHARACTERS > short.num_prompt_tokens
