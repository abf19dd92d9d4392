"""Laws of rendering: a reply says what was sampled, and the prompt after it holds it as it was sampled."""

from collections.abc import Sequence
from typing import Any

import pytest
from rollouts.byte_pairs import byte_pair_tokenizer
from rollouts.episodes import Episode

from orchestrator.rollouts.outcomes import Turn
from orchestrator.rollouts.provider import CallError


def episode(renderer_name: str = "qwen3_instruct", said: str = "hello", **options: Any) -> Episode:
    made = Episode(renderer_name, byte_pair_tokenizer(), **options)
    made.say(said)
    return made


def in_bytes(made: Episode, text: str) -> list[int]:
    """One token a byte: a tokenization that the tokenizer would never give."""
    return [token for byte in text.encode() for token in made.rendering.tokenizer.convert_tokens_to_ids([_BYTES[byte]])]


def _byte_names() -> list[str]:
    """The name of each byte's token, as GPT-2 named them."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


_BYTES = _byte_names()


def extends(first: Turn, second: Turn) -> bool:
    so_far = first.prompt_tokens + first.sampled_tokens
    return second.prompt_tokens[: len(so_far)] == so_far


def two_turns(made: Episode, sampled: Sequence[int], *, between: str = "and now?") -> tuple[Turn, Turn]:
    made.take(made.ask(sampled))
    made.say(between)
    made.ask(made.encode("bye") + made.end)
    first, second = made.turns()
    return first, second


def test_a_reply_cut_into_other_tokens_than_the_tokenizers_is_shown_again_as_it_was_sampled() -> None:
    made = episode()
    sampled = in_bytes(made, "hello world") + made.end
    assert sampled != made.encode("hello world") + made.end
    first, second = two_turns(made, sampled)
    assert extends(first, second)
    text = made.rendering.tokenizer.decode(second.prompt_tokens)
    assert text.endswith("hello world<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n")


def test_tokens_that_do_not_decode_alone_are_shown_again_as_they_were_sampled() -> None:
    made = episode()
    sampled = [*in_bytes(made, "a😀")[:-1], *in_bytes(made, "b"), *made.end]
    first, second = two_turns(made, sampled)
    assert made.messages[1]["content"] == "a\N{REPLACEMENT CHARACTER}b"
    assert extends(first, second)


def test_a_reply_that_the_agent_changed_is_shown_as_it_was_changed() -> None:
    made = episode()
    answer = made.ask(in_bytes(made, "hello world") + made.end)
    answer["choices"][0]["message"]["content"] = "hello word"
    made.take(answer)
    made.say("and now?")
    made.ask(made.end)
    first, second = made.turns()
    assert not extends(first, second)
    assert "hello word<|im_end|>" in made.rendering.tokenizer.decode(second.prompt_tokens)


def test_another_conversation_is_not_shown_what_was_sampled_in_this_one() -> None:
    made = episode()
    made.take(made.ask(in_bytes(made, "hello world") + made.end))
    made.messages[0]["content"] = "good day"
    made.say("and now?")
    made.ask(made.end)
    assert made.client.prompts[1] == made.rendering.prompt_tokens(*_request(made))


def _request(made: Episode) -> tuple[Any, Any]:
    from orchestrator.rollouts.requests import read_messages
    from orchestrator.rollouts.tools import Tools

    return read_messages(made.messages), Tools()


def test_thinking_that_the_renderer_leaves_out_of_the_history_stays_left_out() -> None:
    made = episode("qwen3")
    answer = made.ask(made.encode("<think>\nhm\n</think>\n\nhello") + made.end)
    assert answer["choices"][0]["message"]["reasoning_content"] == "hm"
    made.take(answer, thinking=True)
    made.say("and now?")
    made.ask(made.end)
    first, second = made.turns()
    assert not extends(first, second)
    assert "hm" not in made.rendering.tokenizer.decode(second.prompt_tokens)


def test_thinking_that_the_renderer_keeps_is_shown_again_as_it_was_sampled() -> None:
    made = episode("nemotron3_preserve_thinking")
    answer = made.ask([*in_bytes(made, "hm"), *made.encode("</think>"), *in_bytes(made, "hello"), *made.end])
    made.take(answer, thinking=True)
    made.say("and now?")
    made.ask(made.end)
    assert extends(*made.turns())


def test_a_header_that_ends_a_reply_is_not_taken_for_another() -> None:
    """GLM ends a reply with the token that begins the next message: a tool's is not a user's."""
    made = episode("glm5_3_low_reasoning")
    spoken = [*made.encode("</think>"), *in_bytes(made, "hello")]
    for marker, extended in (("<|user|>", True), ("<|observation|>", False)):
        made = episode("glm5_3_low_reasoning")
        made.take(made.ask(spoken + made.encode(marker)))
        made.say("and now?")
        made.ask(made.end)
        assert extends(*made.turns()) == extended
        assert "hello<|user|>and now?" in made.rendering.tokenizer.decode(made.client.prompts[1])


@pytest.mark.parametrize("renderer_name", ["qwen3_instruct", "role_colon"])
def test_a_reply_cut_off_at_max_tokens_is_shown_as_far_as_it_was_sampled(renderer_name: str) -> None:
    made = episode(renderer_name)
    sampled = in_bytes(made, "hello world")
    assert sampled[:9] != made.encode("hello wor")
    answer = made.ask(sampled, max_tokens=9)
    assert answer["choices"][0]["finish_reason"] == "length"
    made.take(answer)
    made.say("and now?")
    made.ask(made.end)
    first, second = made.turns()
    assert first.stop_reason == "length"
    assert first.sampled_tokens == tuple(sampled[:9])
    assert extends(first, second) == (renderer_name == "qwen3_instruct")


def test_a_stop_string_in_the_middle_of_a_token_keeps_the_token() -> None:
    made = episode()
    (token,) = {token for token in made.encode("hello world") if "ello" in made.rendering.tokenizer.decode([token])}
    sampled = [token, *made.encode(" world"), *made.end]
    answer = made.ask(sampled, stop=["l"])
    assert made.rendering.tokenizer.decode([token]).startswith(answer["choices"][0]["message"]["content"] + "l")
    (turn,) = made.turns()
    assert turn.sampled_tokens == (token,)
    assert turn.stop_reason == "stop"


def test_each_of_several_samples_is_a_turn_and_the_one_that_is_gone_on_with_is_shown_as_sampled() -> None:
    made = episode()
    samples = [in_bytes(made, text) + made.end for text in ("one", "two", "three")]
    made.take(made.ask(*samples, n=3), index=1)
    made.say("and now?")
    made.ask(made.end)
    turns = made.turns()
    assert [turn.sampled_tokens for turn in turns[:3]] == [tuple(sample) for sample in samples]
    assert [extends(turn, turns[3]) for turn in turns[:3]] == [False, True, False]


def test_a_reply_of_nothing_is_an_empty_text_and_a_turn_that_is_not_trained() -> None:
    made = episode()
    assert made.ask([])["choices"][0]["message"]["content"] == ""
    (turn,) = made.turns()
    assert not turn.valid


def test_special_tokens_in_the_middle_of_a_reply_are_no_exception() -> None:
    for renderer_name in ("qwen3_instruct", "role_colon", "llama3", "deepseekv3", "kimi_k2", "gpt_oss_no_sysprompt"):
        made = episode(renderer_name)
        tokens = [*made.end, *range(len(made.rendering.tokenizer.all_special_ids)), *made.end, *made.end]
        made.take(made.ask(tokens))
        made.say("and now?")
        made.ask(made.end)
        assert made.turns()[0].sampled_tokens == tuple(tokens)


@pytest.mark.parametrize(
    ("renderer_name", "messages"),
    [
        ("role_colon", [{"role": "assistant", "content": "a", "reasoning_content": "b"}]),
        ("qwen3_disable_thinking", [{"role": "assistant", "content": "a"}]),
        ("qwen3_instruct", [{"role": "user", "content": "\ud800"}]),
    ],
)
def test_a_conversation_that_the_renderer_has_no_form_for_is_refused(renderer_name: str, messages: Any) -> None:
    made = episode(renderer_name)
    made.messages = messages
    with pytest.raises(CallError, match="cannot render this conversation") as refusal:
        made.ask(made.end)
    assert refusal.value.status == 400
