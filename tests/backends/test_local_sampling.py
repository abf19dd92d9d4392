import asyncio
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from backends.service_factory import MakeService
from tinker import types

from orchestrator.backends.local.clients import LocalSamplingClient
from orchestrator.backends.local.model import AdapterSpec, LanguageModel, Policy
from orchestrator.backends.local.sampling import Continuation, SampleRow, compute_logprobs, sample

PROMPT = types.ModelInput.from_ints([10, 11, 12, 13, 14])


def noisy_policy(directory: Path, *, rank: int) -> Policy:
    """A policy whose adapter, if it has one, does something."""
    model = LanguageModel(directory, name=str(directory), dtype=torch.float32)
    spec = AdapterSpec(rank)
    generator = torch.Generator().manual_seed(5)
    return Policy(
        model,
        spec,
        {
            name: weight + 0.1 * torch.randn(weight.shape, generator=generator)
            for name, weight in model.fresh_weights(spec, seed=1).items()
        },
    )


def row_of(policy: Policy, index: int) -> SampleRow:
    """One of a family of requests that differ in prompt, length and seed, but share a micro-batch."""
    chosen = random.Random(index)
    return SampleRow(
        policy=policy,
        prompt=[chosen.randrange(4, 100) for _ in range(chosen.randint(33, 64))],
        max_tokens=chosen.randint(1, 16),
        temperature=chosen.choice([0.0, 0.7, 1.0]),
        top_k=chosen.choice([20, policy.model.vocab_size]),
        top_p=chosen.choice([0.9, 1.0]),
        stop_tokens=frozenset({7}),
        stop_strings=(),
        seed=(index, 0),
    )


def sample_rows(rows: list[SampleRow]) -> list[Continuation]:
    return sample(rows, lambda: False, num_rows=32)


@pytest.fixture
def num_threads(one_thread: None, request: pytest.FixtureRequest) -> int:
    torch.set_num_threads(request.param)
    return int(request.param)


@pytest.mark.parametrize(
    ("name", "rank", "num_threads"),
    [("llama", 0, 1), ("llama", 4, 1), ("qwen3", 4, 1), ("llama", 4, 2)],
    indirect=["num_threads"],
)
def test_a_rows_tokens_and_logprobs_do_not_depend_on_what_shares_its_micro_batch(
    request: pytest.FixtureRequest, name: str, rank: int, num_threads: int
) -> None:
    policy = noisy_policy(request.getfixturevalue(name), rank=rank)
    alone = {index: sample_rows([row_of(policy, index)])[0] for index in range(8)}
    assert len({tuple(continuation.tokens) for continuation in alone.values()}) == len(alone)
    order = random.Random(num_threads)
    for size in (2, 6, 17, 31, 32):
        company = [order.randrange(64) for _ in range(size)]
        places = order.sample(range(size), min(size, 4))
        for index, place in enumerate(places):
            company[place] = index
        together = sample_rows([row_of(policy, index) for index in company])
        for index, place in enumerate(places):
            assert together[place] == alone[index], f"row {index} at place {place} of {size}"


def test_sampled_logprobs_are_those_of_a_whole_forward_pass(llama: Path) -> None:
    policy = noisy_policy(llama, rank=4)
    for index in range(6):
        row = row_of(policy, index)
        continuation = sample_rows([row])[0]
        scored = compute_logprobs(policy, row.prompt + continuation.tokens)
        assert scored[0] is None
        assert scored[len(row.prompt) :] == pytest.approx(continuation.logprobs, abs=2e-5)


def test_a_prompt_read_in_pieces_is_continued_as_one(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = noisy_policy(llama, rank=0)
    row = row_of(policy, 3)
    whole = sample_rows([row])[0]
    monkeypatch.setattr("orchestrator.backends.local.sampling.PREFILL_TOKENS", 16)
    pieces = sample_rows([row])[0]
    assert pieces.tokens == whole.tokens
    assert pieces.logprobs == pytest.approx(whole.logprobs, abs=2e-5)


async def sampler(make_service: MakeService, base_model: str | Path = "tiny") -> LocalSamplingClient:
    return await make_service().create_sampling_client_async(base_model=str(base_model))


async def draw(client: LocalSamplingClient, num_samples: int = 1, **params: Any) -> list[types.SampledSequence]:
    response = await client.sample_async(PROMPT, num_samples, types.SamplingParams(**params))
    return list(response.sequences)


async def test_samples_follow_the_models_distribution(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    vocabulary = range(len(client.get_tokenizer()))
    logprobs = await asyncio.gather(*(client.compute_logprobs_async(PROMPT.append_int(token)) for token in vocabulary))
    expected = torch.tensor([values[-1] for values in logprobs], dtype=torch.float64).exp()
    assert float(expected.sum()) == pytest.approx(1, abs=1e-4)
    draws = 4000
    counts = Counter(sequence.tokens[0] for sequence in await draw(client, draws, max_tokens=1, seed=0, stop=[]))
    frequent = [token for token in vocabulary if expected[token] * draws > 5]
    statistic = sum(
        (counts[token] - float(expected[token]) * draws) ** 2 / (expected[token] * draws) for token in frequent
    )
    degrees = len(frequent)
    assert abs(float(statistic) - degrees) < 4 * (2 * degrees) ** 0.5


async def test_temperature_sharpens_and_leaves_logprobs_the_models_own(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    mean_logprob = {}
    for temperature in (0.5, 1.0, 2.0):
        sequences = await draw(client, 200, max_tokens=1, seed=1, temperature=temperature, stop=[])
        values = [sequence.logprobs[0] for sequence in sequences if sequence.logprobs]
        mean_logprob[temperature] = sum(values) / len(values)
        by_token = {sequence.tokens[0]: sequence.logprobs for sequence in sequences}
        for token, logprob in list(by_token.items())[:3]:
            assert logprob == pytest.approx(
                (await client.compute_logprobs_async(PROMPT.append_int(token)))[-1:], abs=2e-5
            )
    assert mean_logprob[0.5] > mean_logprob[1.0] > mean_logprob[2.0]


async def test_temperature_0_takes_the_likeliest_token(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    (greedy,) = await draw(client, max_tokens=1, temperature=0.0, stop=[])
    drawn = await draw(client, 200, max_tokens=1, seed=2, stop=[])
    assert greedy.logprobs is not None
    assert all(sequence.logprobs is not None and greedy.logprobs[0] >= sequence.logprobs[0] for sequence in drawn)
    assert [sequence.tokens for sequence in await draw(client, 2, max_tokens=9, temperature=0.0, seed=3)] == [
        (await draw(client, max_tokens=9, temperature=0.0, seed=4))[0].tokens
    ] * 2


async def test_top_k_and_top_p_leave_only_the_likeliest(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    scores = {
        token: (await client.compute_logprobs_async(PROMPT.append_int(token)))[-1] or 0.0
        for token in range(len(client.get_tokenizer()))
    }
    ranked = sorted(scores, key=lambda token: -scores[token])
    top_3 = {sequence.tokens[0] for sequence in await draw(client, 200, max_tokens=1, seed=5, top_k=3, stop=[])}
    assert top_3 == set(ranked[:3])
    mass = torch.tensor([scores[token] for token in ranked], dtype=torch.float64).exp().cumsum(0)
    nucleus = set(ranked[: int((mass < 0.5).sum()) + 1])
    sampled = {sequence.tokens[0] for sequence in await draw(client, 400, max_tokens=1, seed=6, top_p=0.5, stop=[])}
    assert sampled <= nucleus
    assert len(sampled) > len(nucleus) / 2


async def test_a_top_k_beyond_the_vocabulary_leaves_every_token(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    unlimited, huge = await asyncio.gather(
        *(draw(client, 3, max_tokens=8, seed=8, stop=[], top_k=top_k) for top_k in (-1, 2**63))
    )
    assert [sequence.tokens for sequence in huge] == [sequence.tokens for sequence in unlimited]


async def test_sampling_ends_with_the_stop_and_includes_it(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    tokenizer = client.get_tokenizer()
    (free,) = await draw(client, max_tokens=40, seed=7, stop=[])
    assert (free.stop_reason, len(free.tokens), len(free.logprobs or [])) == ("length", 40, 40)
    by_token = (await draw(client, max_tokens=40, seed=7, stop=[free.tokens[9]]))[0]
    first = free.tokens.index(free.tokens[9])
    assert (by_token.stop_reason, by_token.tokens) == ("stop", free.tokens[: first + 1])
    text = tokenizer.decode(free.tokens)
    plain = next(
        start
        for start in range(5, 38)
        if all(len(tokenizer.decode([token])) == 1 for token in free.tokens[start : start + 3])
    )
    wanted = tokenizer.decode(free.tokens[plain : plain + 3])
    by_string = (await draw(client, max_tokens=40, seed=7, stop=[wanted]))[0]
    assert by_string.stop_reason == "stop"
    assert tokenizer.decode(by_string.tokens) == text[: text.index(wanted) + len(wanted)]
    assert by_string.logprobs == (free.logprobs or [])[: len(by_string.tokens)]


async def test_the_end_token_stops_unless_no_stop_is_asked_for(make_service: MakeService, llama: Path) -> None:
    client = await sampler(make_service, llama)
    end = client.get_tokenizer().eos_token_id
    sequences = await draw(client, 100, max_tokens=40, seed=0, stop=[])
    index, free = next((index, free) for index, free in enumerate(sequences) if end in free.tokens[:30])
    assert len(free.tokens) == 40
    until = free.tokens[: free.tokens.index(end) + 1]
    for stop in (None, ["never said"]):
        stopped = (await draw(client, index + 1, max_tokens=40, seed=0, stop=stop))[index]
        assert (stopped.stop_reason, stopped.tokens) == ("stop", until)


async def test_seeds_decide_samples_and_each_sample_of_a_request_differs(make_service: MakeService) -> None:
    client = await sampler(make_service)
    once, again = [
        [sequence.tokens for sequence in await draw(client, 5, max_tokens=12, seed=9, stop=[])] for _ in range(2)
    ]
    assert once == again
    assert all(left != right for left, right in pairwise(sorted(once)))
    entropy = [(await draw(client, max_tokens=12, stop=[]))[0].tokens for _ in range(2)]
    assert entropy[0] != entropy[1]


async def test_a_reply_ends_where_the_context_does_and_a_full_prompt_is_refused(
    make_service: MakeService, llama: Path
) -> None:
    client = await sampler(make_service, llama)
    long = types.ModelInput.from_ints([10] * 250)
    response = await client.sample_async(long, 1, types.SamplingParams(max_tokens=50, seed=0, stop=[]))
    assert len(response.sequences[0].tokens) == 6
    with pytest.raises(tinker.BadRequestError, match="256"):
        await client.sample_async(types.ModelInput.from_ints([10] * 256), 1, types.SamplingParams(max_tokens=1))


@pytest.mark.parametrize(
    "params",
    [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": 0}, {"max_tokens": 0}, {"stop": [""]}],
    ids=lambda params: next(iter(params)),
)
async def test_sampling_parameters_out_of_range_are_refused(make_service: MakeService, params: dict[str, Any]) -> None:
    client = await sampler(make_service)
    with pytest.raises(tinker.BadRequestError):
        await client.sample_async(PROMPT, 1, types.SamplingParams(**params))
    with pytest.raises(tinker.BadRequestError, match="tokenizer"):
        await client.sample_async(types.ModelInput.from_ints([10_000]), 1, types.SamplingParams())
