"""Laws of token identity: what was sampled is what is trained, token for token, whatever was said and however cut.

Random episodes go through the real provider, are stored, read back and made into datums; each datum is then compared
with the turns that were captured, by rules written here anew.
"""

import json
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rollouts.byte_pairs import SPECIAL, byte_pair_tokenizer
from rollouts.characters import character_tokenizer
from rollouts.episodes import VERSION, Episode
from tinker_cookbook.renderers import get_renderer

from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn
from orchestrator.rollouts.trajectories import TrainingBatch, form_training_batch

USUAL = ("role_colon", "qwen3", "qwen3_instruct", "qwen3_disable_thinking")
RENDERERS = (
    *USUAL,
    "llama3",
    *("qwen3_5", "qwen3_5_preserve_thinking", "qwen3_8_low_reasoning"),
    *("deepseekv3", "deepseekv3_thinking", "deepseekv4_1", "deepseekv4_1_preserve_thinking"),
    *("glm5_3_low_reasoning", "kimi_k2", "kimi_k25", "kimi_k26_preserve_thinking"),
    *("nemotron3", "nemotron3_preserve_thinking", "gpt_oss_low_reasoning"),
)
WITHOUT_TOOLS = ("role_colon", "llama3")
MARKED = (
    *SPECIAL,
    *(
        "<think>",
        "</think>",
        "<think>hm</think>",
        "<tool_call>",
        "\n\nUser:",
        "Assistant:",
        "\u0301",
        "\u200d",
        "\ufffd",
    ),
    *("👩‍🚀", "e\u0301", "\n", "\n\n", " "),
    '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>',
    '<tool_call>{"name":"f","arguments":{"x":1}}</tool_call>',
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}

CHARACTERS = st.characters(codec="utf-8")
spoken = st.lists(st.sampled_from(MARKED) | st.text(CHARACTERS, max_size=6), max_size=5).map("".join)
heard = st.text(alphabet=CHARACTERS, max_size=12) | spoken
IDENTITY = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
"""For each of the renderers."""


@dataclass(frozen=True)
class Step:
    """One turn: what the user says, and how the model's reply is cut into tokens and ended."""

    said: str
    reply: str
    cuts: tuple[int, ...]
    """Where the text is cut before each part is encoded alone; none: as the tokenizer would."""
    odd_tokens: tuple[int, ...]
    """Sampled after the reply: fractions of characters, special tokens."""
    ends: bool
    max_tokens: int
    samples: int
    thinking: bool
    """Whether the agent sends back what was reasoned."""


steps = st.builds(
    Step,
    said=heard,
    reply=spoken,
    cuts=st.lists(st.integers(0, 40), max_size=6).map(tuple),
    odd_tokens=st.lists(st.integers(0, 300), max_size=2).map(tuple),
    ends=st.booleans() | st.just(True),
    max_tokens=st.just(4096) | st.integers(1, 6),
    samples=st.just(1) | st.integers(1, 3),
    thinking=st.booleans(),
)


def sampled(made: Episode, text: str, cuts: tuple[int, ...] = ()) -> list[int]:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return [token for begin, end in pairwise(edges) for token in made.encode(text[begin:end])]


def play(renderer_name: str, tokenizer: Any, script: list[Step], *, member: int) -> StoredRollout:
    """A stored rollout of ``script``, its line written and read again."""
    made = Episode(renderer_name, tokenizer, member=member)
    if renderer_name not in WITHOUT_TOOLS:
        made.params = {"tools": [TOOL]}
    for step in script:
        last = made.messages[-1] if made.messages else {}
        for call in last.get("tool_calls", ()):
            made.messages.append({"role": "tool", "tool_call_id": call["id"], "content": step.said})
        if not last.get("tool_calls"):
            made.say(step.said)
        limit = min(step.max_tokens, 4096)
        reply = [*sampled(made, step.reply, step.cuts), *step.odd_tokens, *(made.end if step.ends else [])] or made.end
        answer = made.ask(*([reply] * step.samples), n=step.samples, max_tokens=limit)
        made.take(answer, index=step.samples - 1, thinking=step.thinking and renderer_name not in WITHOUT_TOOLS)
    return stored(made, member)


def stored(made: Episode, member: int) -> StoredRollout:
    """The episode's rollout, as its line is read again: every turn is what the model was asked and what it sampled."""
    key = RolloutKey(VERSION, "train", 0, member)
    line = StoredRollout(key, 0, True, Outcome.SUCCEEDED, float(member), made.turns()).to_json()
    rollout = StoredRollout.from_json(line)
    assert [(turn.prompt_tokens, turn.sampled_tokens, turn.logprobs) for turn in rollout.turns] == made.client.sampled
    return rollout


def extends(first: Turn, second: Turn) -> bool:
    so_far = first.prompt_tokens + first.sampled_tokens
    return second.prompt_tokens[: len(so_far)] == so_far


def expected_datums(turns: tuple[Turn, ...], advantage: float) -> list[list[tuple[int, float, float, float]]]:
    """Per datum and token: the token, its logprob, its advantage, its mask."""
    datums: list[list[tuple[int, float, float, float]]] = []
    for previous, turn in zip((None, *turns), turns, strict=False):
        if previous is None or not extends(previous, turn):
            datums.append([])
        datums[-1] += [(token, 0.0, 0.0, 0.0) for token in turn.prompt_tokens[len(datums[-1]) :]]
        datums[-1] += [(t, lp, advantage, 1.0) for t, lp in zip(turn.sampled_tokens, turn.logprobs, strict=True)]
    return datums


def assert_trained_as_sampled(batch: TrainingBatch, rollouts: list[StoredRollout]) -> None:
    expected = [
        datum
        for rollout, advantage in zip(rollouts, (-0.5, 0.5), strict=True)
        for datum in expected_datums(rollout.turns, advantage)
    ]
    assert len(batch.datums) == len(expected)
    for datum, tokens in zip(batch.datums, expected, strict=True):
        assert datum.model_input.to_ints() == [token for token, *_ in tokens[:-1]]
        found = [datum.loss_fn_inputs[name].tolist() for name in ("target_tokens", "logprobs", "advantages", "mask")]
        assert list(zip(*found, strict=True)) == tokens[1:]
    action_tokens = sum(sum(datum.loss_fn_inputs["mask"].tolist()) for datum in batch.datums)
    assert action_tokens == sum(rollout.sampled_tokens for rollout in rollouts)
    assert batch.metrics["rollout/datum_splits"] == batch.datum_splits == len(expected) - len(rollouts)


def trained(rollouts: list[StoredRollout]) -> TrainingBatch:
    return form_training_batch(rollouts, policy_version=VERSION, group_size=2)


@pytest.mark.parametrize("renderer_name", RENDERERS)
def test_what_was_sampled_is_what_is_trained(renderer_name: str) -> None:
    tokenizer = byte_pair_tokenizer()

    @settings(IDENTITY, max_examples=50 if renderer_name in USUAL else 10)
    @given(st.tuples(*[st.lists(steps, min_size=1, max_size=4)] * 2))
    def check(scripts: tuple[list[Step], list[Step]]) -> None:
        rollouts = [play(renderer_name, tokenizer, script, member=member) for member, script in enumerate(scripts)]
        assert_trained_as_sampled(trained(rollouts), rollouts)

    check()


PLAIN = st.text(alphabet=CHARACTERS, max_size=20).filter(
    lambda text: unicodedata.is_normalized("NFC", text) and not any(mark in text for mark in (*SPECIAL, "<", "User:"))
)


@pytest.mark.parametrize(
    "renderer_name", [name for name in RENDERERS if get_renderer(name, byte_pair_tokenizer()).has_extension_property]
)
def test_an_episode_under_the_extension_property_is_one_datum(renderer_name: str) -> None:
    """However its replies were cut. Some renderers leave out empty replies, and white space at the edges of others."""
    tokenizer = character_tokenizer() if renderer_name == "role_colon" else byte_pair_tokenizer()
    words = (
        st.text(alphabet="abc XYZ.!", min_size=1).map(str.strip)
        if renderer_name == "role_colon"
        else PLAIN.map(str.strip).filter(bool)
    )

    @IDENTITY
    @given(st.lists(st.tuples(PLAIN, words, st.lists(st.integers(0, 20), max_size=6)), min_size=1, max_size=4))
    def check(turns: list[tuple[str, str, list[int]]]) -> None:
        rollouts = []
        for member in range(2):
            made = Episode(renderer_name, tokenizer, member=member)
            opening = sampled(made, "hm</think>") if thinks(made) else []
            for said, reply, cuts in turns:
                made.say(said if renderer_name != "role_colon" else "x")
                made.take(made.ask([*opening, *sampled(made, reply, tuple(cuts)), *made.end]), thinking=True)
            rollouts.append(stored(made, member))
        batch = trained(rollouts)
        assert batch.datum_splits == 0
        assert_trained_as_sampled(batch, rollouts)

    check()


def thinks(made: Episode) -> bool:
    prompt = made.rendering.renderer.build_generation_prompt([{"role": "user", "content": "x"}]).to_ints()
    return "<think>" in made.rendering.tokenizer.decode(prompt[-4:])


def test_tool_calls_in_any_spelling_leave_the_episode_one_datum() -> None:
    """The renderer writes JSON in one way; models write it in many."""
    spellings = st.sampled_from([(", ", ": ", True), (",", ":", True), (", ", ": ", False), (",", ":", False)])
    arguments = st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=3)

    @settings(IDENTITY, max_examples=50)
    @given(st.lists(st.tuples(spellings, arguments, st.booleans()), min_size=1, max_size=4))
    @example([((", ", ": ", True), {"": 2**63 - 1 - 2**64}, False)] * 2)  # a number that not every reader takes: text
    def check(calls: list[tuple[tuple[str, str, bool], dict[str, Any], bool]]) -> None:
        rollouts = []
        for member in range(2):
            made = Episode("qwen3_instruct", byte_pair_tokenizer(), member=member)
            made.params = {"tools": [TOOL]}
            made.say("call it")
            for (comma, colon, ascii_only), given_arguments, with_text in calls:
                call = {"name": "f", "arguments": given_arguments}
                text = json.dumps(call, separators=(comma, colon), ensure_ascii=ascii_only)
                text = f"{'Let me.' + chr(10) if with_text else ''}<tool_call>\n{text}\n</tool_call>"
                message = made.take(made.ask(sampled(made, text) + made.end))
                for made_call in message.get("tool_calls", ()):
                    made.messages.append({"role": "tool", "tool_call_id": made_call["id"], "content": "done"})
                if not message.get("tool_calls"):
                    made.say("call it")
            rollouts.append(stored(made, member))
        assert_trained_as_sampled(trained(rollouts), rollouts)
        if all(unicodedata.is_normalized("NFC", json.dumps(call[1], ensure_ascii=False)) for call in calls):
            assert trained(rollouts).datum_splits == 0

    check()
