import math
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from backends.service_factory import MakeService
from tinker import types
from tinker_cookbook.rl.metrics import compute_post_kl, incorporate_kl_penalty
from tinker_cookbook.rl.train import train_step

from orchestrator.backends.local.clients import LocalTrainingClient
from orchestrator.backends.local.losses import DEFAULT_CLIP, Clip, check_examples
from orchestrator.backends.local.model import AdapterSpec, LanguageModel
from orchestrator.backends.local.training import Trainer

ADAM = types.AdamParams(learning_rate=1e-2, eps=1e-8)


def integers(*values: int) -> types.TensorData:
    return types.TensorData(data=list(values), dtype="int64")


def numbers(*values: float) -> types.TensorData:
    return types.TensorData(data=list(values), dtype="float32")


def datum(loss_fn: str, *, length: int, seed: int) -> tinker.Datum:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, 100, (length + 1,), generator=generator)
    inputs: dict[str, Any] = {"target_tokens": tokens[1:]}
    if loss_fn == "cross_entropy":
        inputs["weights"] = torch.rand(length, generator=generator)
    else:
        inputs["logprobs"] = -8 * torch.rand(length, generator=generator)
        inputs["advantages"] = torch.randn(length, generator=generator)
    return tinker.Datum(model_input=types.ModelInput.from_ints(tokens[:-1].tolist()), loss_fn_inputs=inputs)


def data(loss_fn: str = "cross_entropy", *, seed: int = 0, lengths: tuple[int, ...] = (5, 11, 8)) -> list[tinker.Datum]:
    return [datum(loss_fn, length=length, seed=seed * 100 + index) for index, length in enumerate(lengths)]


def plain_loss(loss_fn: str, logprob: torch.Tensor, inputs: dict[str, torch.Tensor], clip: Clip) -> torch.Tensor:
    """The loss of one datum, written as its definition reads."""
    if loss_fn == "cross_entropy":
        return -(inputs["weights"] * logprob).sum()
    ratio, advantage = (logprob - inputs["logprobs"]).exp(), inputs["advantages"]
    bounded = torch.clip(ratio, clip.low, clip.high)
    return {
        "importance_sampling": -(ratio * advantage).sum(),
        "ppo": -torch.min(ratio * advantage, bounded * advantage).sum(),
        "cispo": -(bounded.detach() * logprob * advantage).sum(),
    }[loss_fn]


@pytest.mark.parametrize("loss_fn", ["cross_entropy", "importance_sampling", "ppo", "cispo"])
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("clip", [DEFAULT_CLIP, Clip(0.01, 30.0)], ids=["default", "wide"])
def test_gradients_are_those_of_the_summed_token_losses(llama: Path, loss_fn: str, rank: int, clip: Clip) -> None:
    model = LanguageModel(llama, name="llama", dtype=torch.float32)
    spec = AdapterSpec(rank)
    weights = {
        name: weight + 0.05 * torch.ones_like(weight) for name, weight in model.fresh_weights(spec, seed=0).items()
    }
    trainer = Trainer(model, spec, weights)
    examples = check_examples(data(loss_fn), loss_fn, context_tokens=256, vocab_size=model.vocab_size)
    output = trainer.forward_backward(examples, loss_fn, clip)

    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    total = torch.zeros(())
    for example, returned in zip(examples, output.loss_fn_outputs, strict=True):
        logits = torch.func.functional_call(model.module(spec), leaves, (example.tokens[None],)).logits[0]
        logprobs = logits.log_softmax(-1)[torch.arange(len(example.tokens)), example.targets]
        assert returned["logprobs"].to_torch() == pytest.approx(logprobs.detach(), abs=1e-5)
        total = total + plain_loss(loss_fn, logprobs, dict(example.inputs), clip)
    assert output.metrics["loss:sum"] == pytest.approx(total.item(), rel=1e-5)
    for name, gradient in zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True):
        found = trainer.policy.weights[name].grad
        assert found is not None
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max()) + 1e-7)
        assert float(gradient.abs().max()) > 0


def test_a_batch_that_takes_several_passes_has_the_same_gradients(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(llama, name="llama", dtype=torch.float32)
    spec = AdapterSpec(0)
    examples = check_examples(data("ppo"), "ppo", context_tokens=256, vocab_size=model.vocab_size)
    trainers = [Trainer(model, spec, model.fresh_weights(spec, seed=0)) for _ in range(2)]
    whole = trainers[0].forward_backward(examples, "ppo", DEFAULT_CLIP)
    monkeypatch.setattr(LanguageModel, "tokens_per_pass", 12)
    pieces = trainers[1].forward_backward(examples, "ppo", DEFAULT_CLIP)
    assert len(pieces.loss_fn_outputs) == len(whole.loss_fn_outputs)
    for name, weight in trainers[0].policy.weights.items():
        torch.testing.assert_close(trainers[1].policy.weights[name].grad, weight.grad)


@pytest.mark.parametrize(("weight_decay", "grad_clip_norm"), [(0.0, 0.0), (0.1, 0.5)])
def test_optim_step_is_adam_with_decoupled_decay(llama: Path, weight_decay: float, grad_clip_norm: float) -> None:
    model = LanguageModel(llama, name="llama", dtype=torch.float32)
    spec = AdapterSpec(0)
    trainer = Trainer(model, spec, model.fresh_weights(spec, seed=0))
    reference = [weight.requires_grad_() for weight in trainer.weights().values()]
    adam = torch.optim.AdamW(reference, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)
    for step in range(4):
        rate = 1e-2 / (step + 1)
        examples = check_examples(data(seed=step), "cross_entropy", context_tokens=256, vocab_size=model.vocab_size)
        for _ in range(2):  # gradients add up until the step
            trainer.forward_backward(examples, "cross_entropy", DEFAULT_CLIP)
        for leaf, weight in zip(reference, trainer.policy.weights.values(), strict=True):
            assert weight.grad is not None
            leaf.grad = weight.grad.clone()
        norm = float(torch.nn.utils.clip_grad_norm_(reference, grad_clip_norm or math.inf))
        adam.param_groups[0]["lr"] = rate
        adam.step()
        params = types.AdamParams(
            learning_rate=rate, eps=1e-8, weight_decay=weight_decay, grad_clip_norm=grad_clip_norm
        )
        metrics = trainer.optim_step(params).metrics
        assert metrics is not None
        assert metrics["unclipped_grad_l2:mean"] == pytest.approx(norm, rel=1e-4)
        for leaf, weight in zip(reference, trainer.policy.weights.values(), strict=True):
            torch.testing.assert_close(weight, leaf, rtol=1e-5, atol=1e-6)
            assert weight.grad is None


async def train(client: LocalTrainingClient, seed: int) -> list[torch.Tensor]:
    forward = await client.forward_backward_async(data(seed=seed), "cross_entropy")
    step = await client.optim_step_async(ADAM)
    outputs = (await forward.result_async()).loss_fn_outputs
    metrics = (await step.result_async()).metrics or {}
    norm = torch.tensor(metrics["unclipped_grad_l2:mean"], dtype=torch.float64)
    return [*(output["logprobs"].to_torch() for output in outputs), norm]


@pytest.mark.parametrize("rank", [0, 4])
async def test_training_goes_on_bit_for_bit_from_weights_and_optimizer_and_not_from_weights_alone(
    make_service: MakeService, qwen3: Path, rank: int
) -> None:
    service = make_service()
    client = await service.create_lora_training_client_async(str(qwen3), rank=rank, seed=3)
    for seed in range(3):
        await train(client, seed)
    path = (await (await client.save_state_async("state")).result_async()).path
    expected = [await train(client, seed) for seed in (3, 4)]

    with_optimizer = await make_service().create_training_client_from_state_with_optimizer_async(path)
    without = await service.create_training_client_from_state_async(path)
    again = [await train(with_optimizer, seed) for seed in (3, 4)]
    fresh = [await train(without, seed) for seed in (3, 4)]
    assert all(
        torch.equal(*pair)
        for left, right in zip(expected, again, strict=True)
        for pair in zip(left, right, strict=True)
    )
    assert all(torch.equal(*pair) for pair in zip(expected[0], fresh[0], strict=True))  # the weights are the same
    assert not any(torch.equal(*pair) for pair in zip(expected[1], fresh[1], strict=True))  # their step is not


async def test_an_adapter_changes_nothing_until_it_is_trained_and_is_drawn_from_its_seed(
    make_service: MakeService, llama: Path
) -> None:
    service = make_service()
    prompt = types.ModelInput.from_ints(list(range(10, 30)))
    base = await (await service.create_sampling_client_async(base_model=str(llama))).compute_logprobs_async(prompt)
    after: dict[int, list[float | None]] = {}
    for attempt, seed in enumerate((0, 0, 1)):
        client = await service.create_lora_training_client_async(str(llama), rank=4, seed=seed)
        scores = []
        for name in ("before", "after"):
            path = (await (await client.save_weights_for_sampler_async(f"{attempt}-{name}")).result_async()).path
            sampler = await service.create_sampling_client_async(path)
            scores.append(await sampler.compute_logprobs_async(prompt))
            await train(client, 0)
        assert scores[0] == base
        assert scores[1] != base
        assert after.setdefault(seed, scores[1]) == scores[1]
    assert after[0] != after[1]


async def test_the_cookbooks_train_step_and_kl_metrics_run_on_the_clients(make_service: MakeService) -> None:
    service = make_service()
    client: Any = await service.create_lora_training_client_async("tiny", rank=0)
    base: Any = await service.create_sampling_client_async(base_model="tiny")
    batch = data("importance_sampling", lengths=(6, 9, 4, 7))
    for item in batch:
        full = item.model_input.append_int(int(item.loss_fn_inputs["target_tokens"].data[-1]))
        scores = await base.compute_logprobs_async(full)
        item.loss_fn_inputs["logprobs"] = types.TensorData.from_torch(torch.tensor(scores[1:]))
        item.loss_fn_inputs["mask"] = types.TensorData.from_torch(torch.ones(item.model_input.length))
    assert (await incorporate_kl_penalty(batch, base, 0.1, 0.0))["kl_policy_base"] == pytest.approx(0, abs=1e-6)
    metrics: dict[str, Any] = {}
    logprobs = await train_step(
        batch, client, learning_rate=1e-2, num_substeps=2, loss_fn="importance_sampling", metrics=metrics
    )
    assert [len(item) for item in logprobs] == [6, 9, 4, 7]
    for item, found in zip(batch[:2], logprobs[:2], strict=True):  # the first substep still has the base's weights
        assert found == pytest.approx(item.loss_fn_inputs["logprobs"].to_torch(), abs=1e-5)
    assert metrics["unclipped_grad_l2:mean"] > 0
    path = (await (await client.save_weights_for_sampler_async("a")).result_async()).path
    post_kl = await compute_post_kl(batch, await service.create_sampling_client_async(path))
    assert post_kl["kl_pre_post_v2"] > 0


async def test_a_bandit_learns_its_rewarded_token(make_service: MakeService) -> None:
    service = make_service()
    client: Any = await service.create_lora_training_client_async("tiny", rank=0)
    prompt, wanted = [10, 11, 12], set(range(20, 40))
    means = []
    for step in range(30):
        path = (await (await client.save_weights_for_sampler_async(f"{step}")).result_async()).path
        sampler = await service.create_sampling_client_async(path)
        params = types.SamplingParams(max_tokens=1, seed=step, stop=[])
        sequences = (await sampler.sample_async(types.ModelInput.from_ints(prompt), 64, params)).sequences
        rewards = [float(sequence.tokens[0] in wanted) for sequence in sequences]
        means.append(sum(rewards) / len(rewards))
        batch = [
            tinker.Datum(
                model_input=types.ModelInput.from_ints(prompt),
                loss_fn_inputs={
                    "target_tokens": integers(*prompt[1:], sequence.tokens[0]),
                    "logprobs": numbers(0.0, 0.0, (sequence.logprobs or [0.0])[0]),
                    "advantages": numbers(0.0, 0.0, reward - means[-1]),
                },
            )
            for sequence, reward in zip(sequences, rewards, strict=True)
        ]
        await train_step(batch, client, learning_rate=3e-3, num_substeps=1, loss_fn="importance_sampling")
    assert means[0] < 0.4
    assert means[-1] > 0.9


async def test_bad_requests_are_refused_before_anything_is_added(make_service: MakeService) -> None:
    client: Any = await make_service().create_lora_training_client_async("tiny", rank=0)
    good = data()[0]
    bad_data: list[tuple[str, list[tinker.Datum]]] = [
        ("at least one datum", []),
        ("loss_fn_inputs of cross_entropy", data("ppo")),
        ("shape", [tinker.Datum(model_input=types.ModelInput.from_ints([5]), loss_fn_inputs=good.loss_fn_inputs)]),
        (
            "outside",
            [
                tinker.Datum(
                    types.ModelInput.from_ints([5, 101]),
                    {"target_tokens": integers(5, 5), "weights": numbers(1.0, 1.0)},
                )
            ],
        ),
        (
            "outside",
            [
                tinker.Datum(
                    types.ModelInput.from_ints([5, 6]),
                    {"target_tokens": integers(5, 101), "weights": numbers(1.0, 1.0)},
                )
            ],
        ),
    ]
    for message, batch in bad_data:
        with pytest.raises(tinker.BadRequestError, match=message):
            await client.forward_backward_async(batch, "cross_entropy")
    with pytest.raises(tinker.BadRequestError, match="cispo, cross_entropy"):
        await client.forward_backward_async([good], "dro")
    with pytest.raises(tinker.BadRequestError, match="clip_high"):
        await client.forward_backward_async([good], "cross_entropy", {"clip_high": 1.0})
    metrics = (await (await client.optim_step_async(ADAM)).result_async()).metrics
    assert metrics == {"unclipped_grad_l2:mean": 0.0}


async def test_requests_are_carried_out_in_order_even_when_nobody_waits(make_service: MakeService) -> None:
    client = await make_service().create_lora_training_client_async("tiny", rank=0)
    futures = [await client.forward_backward_async(data(), "cross_entropy") for _ in range(2)]
    step = await client.optim_step_async(ADAM)
    after = await client.forward_backward_async(data(), "cross_entropy")
    before = [(await future.result_async()).metrics["loss:sum"] for future in futures]
    assert before[0] == before[1]
    assert (await after.result_async()).metrics["loss:sum"] < before[0]
    assert step.done.done()
    with pytest.raises(TimeoutError):
        await (await client.forward_backward_async(data(), "cross_entropy")).result_async(timeout=0)
