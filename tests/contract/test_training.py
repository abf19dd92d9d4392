"""Train steps, as ``TrainedWeights`` and tinker-cookbook's ``train_step`` rely on them."""

from typing import Any

import pytest
from contract.exchange import (
    CLOSE,
    LOSSES,
    SEQUENCES,
    Party,
    datums,
    distance,
    forward_backward,
    logprobs_of,
    score,
    step,
    unused_name,
)
from tinker import types

from orchestrator.backends.surface import TrainingClient


@pytest.fixture(scope="module")
async def trained(party: Party) -> TrainingClient:
    """Weights that are not the base model's, and that no test here changes."""
    return await party.trained()


async def test_every_loss_returns_the_logprobs_that_scoring_gives(party: Party, trained: TrainingClient) -> None:
    expected = await score(await party.sampler(trained))
    for loss_fn in LOSSES:
        assert distance(await forward_backward(trained, datums(loss_fn), loss_fn), expected) < CLOSE, loss_fn


@pytest.mark.parametrize("loss_fn", LOSSES)
async def test_the_sum_of_token_losses_is_told(trained: TrainingClient, loss_fn: Any) -> None:
    """Ratios of 1.05, inside the clip, and of 1.5, outside: a rising token that has risen enough counts no more."""
    now = await forward_backward(trained, datums("cross_entropy"), "cross_entropy")
    for ratio, ratio_log in ((1.05, 0.04879), (1.5, 0.405465)):
        before = [[logprob - ratio_log for logprob in sequence] for sequence in now]
        data = datums(loss_fn, weight=0.5, logprobs=before)
        output = await (await trained.forward_backward_async(data, loss_fn)).result_async()
        total, count = sum(map(sum, now)), sum(map(len, now))
        expected = {
            "cross_entropy": -0.5 * total,
            "importance_sampling": -0.5 * ratio * count,
            "ppo": -0.5 * min(ratio, 1.2) * count,
            "cispo": -0.5 * min(ratio, 1.2) * total,
        }
        assert output.metrics["loss:sum"] == pytest.approx(expected[loss_fn], rel=1e-3)


@pytest.mark.parametrize("loss_fn", LOSSES[1:])
async def test_an_advantage_moves_the_logprobs_of_its_tokens_its_way(party: Party, loss_fn: Any) -> None:
    client = await party.fresh()
    for advantage in (1.0, -1.0):
        before = await forward_backward(client, datums("cross_entropy", weight=0.0), "cross_entropy")
        await step(client, datums(loss_fn, weight=advantage, logprobs=before), loss_fn)
        after = await forward_backward(client, datums("cross_entropy", weight=0.0), "cross_entropy")
        moved = sum(map(sum, after)) - sum(map(sum, before))
        assert moved * advantage > 0, f"advantage {advantage} moved the logprobs by {moved}"


async def test_the_gradient_is_summed_over_datums_and_tokens(party: Party) -> None:
    """With an eps far above the gradient Adam's first step is proportional to it."""

    async def moved(data: Any) -> float:
        client = await party.fresh()
        before = await step(client, data, learning_rate=100.0, eps=1e5)
        after = await forward_backward(client, datums("cross_entropy", sequences=SEQUENCES[:1]), "cross_entropy")
        return sum(after[0]) - sum(before[0])

    once = await moved(datums("cross_entropy", sequences=SEQUENCES[:1]))
    assert once > 0
    assert await moved(datums("cross_entropy", sequences=SEQUENCES[:1] * 2)) / once == pytest.approx(2, rel=0.2)
    assert await moved(datums("cross_entropy", sequences=SEQUENCES[:1], weight=2.0)) / once == pytest.approx(2, rel=0.2)


async def test_requests_are_carried_out_in_the_order_in_which_they_are_made(party: Party) -> None:
    """Two steps and a save between them are enqueued before anything is waited for."""
    client, adam = await party.fresh(), types.AdamParams(learning_rate=0.02)
    passes = [await client.forward_backward_async(datums("cross_entropy"), "cross_entropy")]
    steps = [await client.optim_step_async(adam)]
    saving = await client.save_state_async(unused_name())
    passes.append(await client.forward_backward_async(datums("cross_entropy"), "cross_entropy"))
    steps.append(await client.optim_step_async(adam))
    first, second = [logprobs_of(await waiting.result_async()) for waiting in passes]
    for stepping in steps:
        await stepping.result_async()
    path = (await saving.result_async()).path
    restored = await party.service.create_training_client_from_state_async(path)
    between = await forward_backward(restored, datums("cross_entropy"), "cross_entropy")
    assert distance(between, second) < CLOSE
    assert distance(between, first) > 10 * CLOSE
    assert distance(await forward_backward(client, datums("cross_entropy"), "cross_entropy"), second) > 10 * CLOSE


async def test_gradients_are_gathered_until_a_step_and_then_cleared(party: Party) -> None:
    """A step on what two requests gathered and one on nothing: the second moves nothing but by momentum."""
    one, other = await party.fresh(), await party.fresh()
    await forward_backward(one, datums("cross_entropy", sequences=SEQUENCES[:1]), "cross_entropy")
    await step(one, datums("cross_entropy", sequences=SEQUENCES[1:]))
    await step(other, datums("cross_entropy"))
    data = datums("cross_entropy", weight=0.0)
    found, expected = [await forward_backward(client, data, "cross_entropy") for client in (one, other)]
    assert distance(found, expected) < 10 * CLOSE
