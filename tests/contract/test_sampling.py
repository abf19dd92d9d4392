"""Sampling and scoring, as the provider, the renderers and the KL penalty rely on them."""

import asyncio

import pytest
import tinker
from contract.exchange import CLOSE, PROMPT, Party, distance, sample, score
from tinker import types

from orchestrator.backends.surface import SamplingClient


@pytest.fixture
async def sampler(party: Party) -> SamplingClient:
    """Of the base model."""
    return await party.service.create_sampling_client_async(base_model=party.base_model)


async def test_a_sample_has_one_logprob_a_token_which_scoring_gives_too(sampler: SamplingClient) -> None:
    sequence = await sample(sampler, stop=[])
    assert len(sequence.tokens) == 6
    assert sequence.stop_reason == "length"
    assert all(isinstance(token, int) for token in sequence.tokens)
    assert sequence.logprobs is not None
    (scored,) = await score(sampler, [[*PROMPT, *sequence.tokens]])
    assert distance([sequence.logprobs], [scored[-6:]]) < CLOSE
    assert max(sequence.logprobs) <= 0


async def test_temperature_0_is_greedy(sampler: SamplingClient) -> None:
    first, again, most_likely = [
        await sample(sampler, temperature=temperature, top_k=top_k) for temperature, top_k in ((0, -1), (0, -1), (1, 1))
    ]
    assert list(first.tokens) == list(again.tokens)
    assert list(first.tokens) == list(most_likely.tokens)


async def test_top_k_and_top_p_leave_out_the_unlikely(sampler: SamplingClient) -> None:
    greedy = await sample(sampler, temperature=0)
    for params in ({"top_k": 1}, {"top_p": 1e-6}):
        assert list((await sample(sampler, temperature=1.5, **params)).tokens) == list(greedy.tokens), params


async def test_a_stop_token_ends_the_sample_and_is_its_last_token(sampler: SamplingClient) -> None:
    """A renderer tells by it that a message is complete."""
    greedy = list((await sample(sampler, temperature=0)).tokens)
    stop = greedy[3]
    stopped = await sample(sampler, temperature=0, stop=[stop])
    assert stopped.stop_reason == "stop"
    assert list(stopped.tokens) == greedy[: greedy.index(stop) + 1]
    assert stopped.logprobs is not None
    assert len(stopped.logprobs) == len(stopped.tokens)


async def test_a_seed_gives_the_same_tokens_again(sampler: SamplingClient) -> None:
    """In other company, too."""
    asked = [sample(sampler, PROMPT[:size], seed=seed) for seed, size in ((5, 8), (6, 8), (7, 5))]
    together = [list(sequence.tokens) for sequence in await asyncio.gather(*asked)]
    alone = list((await sample(sampler, seed=5)).tokens)
    assert alone == together[0]
    assert together[0] != together[1]


async def test_several_samples_are_asked_for_at_once(sampler: SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=6)
    response = await sampler.sample_async(types.ModelInput.from_ints(PROMPT), 3, params)
    assert len({tuple(sequence.tokens) for sequence in response.sequences}) == 3


async def test_the_first_prompt_token_has_no_logprob_and_the_others_have(sampler: SamplingClient) -> None:
    first, *others = await sampler.compute_logprobs_async(types.ModelInput.from_ints(PROMPT))
    assert first is None
    assert len(others) == len(PROMPT) - 1
    assert all(logprob is not None and logprob < 0 for logprob in others)


async def test_a_sampler_that_is_not_there_is_not_found(party: Party) -> None:
    """A run then saves it again from the weights."""
    client = await party.fresh()
    saved = await (await client.save_weights_for_sampler_async("there")).result_async()
    with pytest.raises(tinker.NotFoundError):
        await party.service.create_sampling_client_async(saved.path.replace("there", "nowhere"))
