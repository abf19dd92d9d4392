"""Training of one set of weights: gradients of the token losses, gathered over calls, and Adam."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from tinker import types
from torch import Tensor
from torch.nn import functional

from orchestrator.backends.local.losses import Clip, Example, token_losses
from orchestrator.backends.local.model import AdapterSpec, LanguageModel, Policy
from orchestrator.backends.local.status_errors import bad_request

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STEP = "step"


class Trainer:
    """Weights, gradients and optimizer of one training client; used by the worker thread only.

    The same calls on the same weights give the same bits, for one machine, one PyTorch and one number of threads.
    """

    def __init__(self, model: LanguageModel, spec: AdapterSpec, weights: Mapping[str, Tensor]) -> None:
        """Trains a copy of ``weights`` (float32), with a fresh optimizer."""
        # By name: a model has its parameters in one order and a checkpoint in another, and the norm sums over them.
        ordered = {name: weights[name].clone().requires_grad_() for name in sorted(weights)}
        self.policy = Policy(model, spec, ordered)
        self._moments = {
            moment: {name: torch.zeros_like(weight) for name, weight in weights.items()} for moment in _MOMENTS
        }
        self._steps = 0

    def forward_backward(self, examples: Sequence[Example], loss_fn: str, clip: Clip) -> types.ForwardBackwardOutput:
        """Adds the gradient of the summed token losses; gives each example's target logprobs."""
        total = 0.0
        outputs: list[dict[str, types.TensorData]] = []
        for chunk in _passes(examples, self.policy.model.tokens_per_pass):
            # Padding stands on the right, where causal attention never looks: no mask, and no effect on what precedes.
            tokens, targets = (_pad([getattr(example, name) for example in chunk]) for name in ("tokens", "targets"))
            inputs = {name: _pad([example.inputs[name] for example in chunk]) for name in chunk[0].inputs}
            logprobs = target_logprobs(self.policy.logits(tokens, use_cache=False), targets)
            loss = token_losses(loss_fn, logprobs, inputs, clip).sum()  # padded weights and advantages are 0
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            for row, example in enumerate(chunk):
                own = logprobs[row, : len(example.tokens)].detach().clone()
                outputs.append({"logprobs": types.TensorData.from_torch(own)})
        return types.ForwardBackwardOutput("TorchLossReturn", outputs, {"loss:sum": total})

    @torch.no_grad()
    def optim_step(self, adam: types.AdamParams) -> types.OptimStepResponse:
        """One step of Adam with decoupled weight decay; the gathered gradients are cleared, absent ones count as 0."""
        gradients = {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad
            for name, weight in self.policy.weights.items()
        }
        norm = math.sqrt(sum(float(gradient.square().sum(dtype=torch.float64)) for gradient in gradients.values()))
        if 0 < adam.grad_clip_norm < norm:
            for gradient in gradients.values():
                gradient.mul_(adam.grad_clip_norm / norm)
        self._steps += 1
        step_size = adam.learning_rate / (1 - adam.beta1**self._steps)
        scale = math.sqrt(1 - adam.beta2**self._steps)
        for name, weight in self.policy.weights.items():
            average, average_square = (self._moments[moment][name] for moment in _MOMENTS)
            weight.mul_(1 - adam.learning_rate * adam.weight_decay)
            average.lerp_(gradients[name], 1 - adam.beta1)
            average_square.mul_(adam.beta2).addcmul_(gradients[name], gradients[name], value=1 - adam.beta2)
            weight.addcdiv_(average, (average_square.sqrt() / scale).add_(adam.eps), value=-step_size)
            weight.grad = None
        return types.OptimStepResponse(metrics={"unclipped_grad_l2:mean": norm})

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights as they are now."""
        return {name: weight.detach().clone() for name, weight in self.policy.weights.items()}

    def optimizer_state(self) -> dict[str, Tensor]:
        """Adam's moments and step count, as tensors to be stored."""
        moments = {f"{moment}.{name}": value for moment, of in self._moments.items() for name, value in of.items()}
        return {_STEP: torch.tensor(self._steps, dtype=torch.int64), **moments}

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what ``optimizer_state`` gave.

        Raises:
            tinker.BadRequestError: it is of another set of weights.
        """
        expected = {name: value.shape for name, value in self.optimizer_state().items()}
        if {name: value.shape for name, value in state.items()} != expected:
            raise bad_request("the optimizer state belongs to other weights: names or shapes differ")
        self._steps = int(state[_STEP])
        self._moments = {
            moment: {name: state[f"{moment}.{name}"].clone() for name in self.policy.weights} for moment in _MOMENTS
        }


def target_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probability ``[rows, positions]`` of each target under ``logits`` ``[rows, positions, vocabulary]``."""
    flat = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return -flat.view(targets.shape)


def _passes(examples: Sequence[Example], max_tokens: int) -> Iterator[list[Example]]:
    """Consecutive examples whose padded rows hold at most ``max_tokens``; a longer one goes alone."""
    chunk: list[Example] = []
    longest = 0
    for example in examples:
        longest = max(longest, len(example.tokens))
        if chunk and longest * (len(chunk) + 1) > max_tokens:
            yield chunk
            chunk, longest = [], len(example.tokens)
        chunk.append(example)
    if chunk:
        yield chunk


def _pad(tensors: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(tensors), batch_first=True)
