"""A failed rollout tells what happened, and never what it was asked."""

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.rollouts.outcomes import Turn
from orchestrator.rollouts.quotes import MIN_STRETCH_CHARACTERS, prompts_of, without_prompts

PROMPT = "The patient, born in 1961,\nsays that it hurts."


def turn(prompt: str, reply: str) -> Turn:
    return Turn(tuple(map(ord, prompt)), tuple(map(ord, reply)), (0.0,) * len(reply), 0, "stop")


def decode(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


def test_a_quoted_prompt_is_told_by_its_length_whole_or_cut_plain_or_escaped() -> None:
    assert without_prompts(f"no answer to {PROMPT}", [PROMPT]) == "no answer to [prompt, 46 characters]"
    assert without_prompts(f"no answer to {PROMPT[:30]}...", [PROMPT]) == "no answer to [prompt, 30 characters]..."
    assert without_prompts(f"KeyError: {PROMPT!r}", [PROMPT]) == "KeyError: '[prompt, 47 characters]'"


def test_what_only_looks_a_little_like_the_prompt_stays() -> None:
    told = "the patient is a str, expected a dict with born"
    assert without_prompts(told, [PROMPT]) == told


def test_a_short_text_of_a_task_is_known_where_it_is_quoted_whole() -> None:
    prompts = prompts_of({"word": "secret", "hint": ["Lorelei"], "number": 7, "kind": "str"}, [], decode)
    assert without_prompts("a str: Lorelei, secrets, 7, Lore", prompts) == (
        "a str: [prompt, 7 characters], [prompt, 6 characters]s, 7, Lore"
    )


def test_what_the_model_said_is_told_even_where_a_later_prompt_shows_it() -> None:
    reply = "I think that it is seven, or eight."
    asked = f"user: {PROMPT} assistant: "
    prompts = prompts_of(None, [turn(asked, reply), turn(f"{asked}{reply} user: really? assistant: ", "yes")], decode)
    assert len(prompts) == 1
    assert without_prompts(f"cannot read {reply!r}", prompts) == f"cannot read {reply!r}"
    assert PROMPT[:MIN_STRETCH_CHARACTERS] not in without_prompts(f"cannot read {PROMPT}", prompts)


@given(st.text("abc", max_size=60), st.text("abc", min_size=12, max_size=60))
def test_nothing_is_left_that_quotes_a_stretch_of_the_prompt(text: str, prompt: str) -> None:
    told = without_prompts(text, [prompt])
    stretches = {prompt[start : start + MIN_STRETCH_CHARACTERS] for start in range(len(prompt) - 11)}
    assert not any(stretch in told for stretch in stretches)
