"""The service's token losses, and the check and conversion of the datums they are computed from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tinker
import torch
from torch import Tensor

from orchestrator.backends.local.status_errors import bad_request
from orchestrator.backends.requirements import LOCAL_LOSS_SETTINGS

LOSS_INPUTS: Mapping[str, frozenset[str]] = {
    "cross_entropy": frozenset({"weights"}),
    "importance_sampling": frozenset({"logprobs", "advantages"}),
    "ppo": frozenset({"logprobs", "advantages"}),
    "cispo": frozenset({"logprobs", "advantages"}),
}
"""What each loss needs beside ``target_tokens``, one number a token."""


@dataclass(frozen=True, slots=True)
class Clip:
    """The range in which the probability ratio counts."""

    low: float
    high: float


DEFAULT_CLIP = Clip(low=0.8, high=1.2)
"""The service's."""


@dataclass(frozen=True, slots=True)
class Example:
    """One datum, checked."""

    tokens: Tensor
    """Input token ids, ``[positions]``."""
    targets: Tensor
    """The token to predict at each position, ``[positions]``."""
    inputs: Mapping[str, Tensor]
    """The loss's own inputs, each ``[positions]``, float32."""


def check_clip(loss_fn: str, loss_fn_config: Mapping[str, float] | None) -> Clip:
    """The clip range that ``loss_fn_config`` asks for.

    Raises:
        tinker.BadRequestError: the loss is unknown or has no such option.
    """
    if loss_fn not in LOSS_INPUTS:
        raise bad_request(f"loss_fn={loss_fn}: the embedded backend has {', '.join(sorted(LOSS_INPUTS))}")
    given = dict(loss_fn_config or {})
    allowed = LOCAL_LOSS_SETTINGS[loss_fn]
    if set(given) - allowed:
        options = ", ".join(sorted(allowed)) or "none"
        raise bad_request(
            f"loss_fn_config of {loss_fn} holds {sorted(set(given) - allowed)}; its options are {options}"
        )
    return Clip(
        low=given.get("clip_low_threshold", DEFAULT_CLIP.low), high=given.get("clip_high_threshold", DEFAULT_CLIP.high)
    )


def check_examples(
    data: Sequence[tinker.Datum], loss_fn: str, *, context_tokens: int, vocab_size: int
) -> list[Example]:
    """The datums as tensors.

    Raises:
        tinker.BadRequestError: an input is missing, not expected, not one-dimensional or not as long as the tokens; a
            token is not in the vocabulary; there are more tokens than the context holds; there are no datums.
    """
    if not data:
        raise bad_request("forward_backward: expected at least one datum, found none")
    return [
        _check_example(datum, f"datum {index} of {len(data)}", loss_fn, context_tokens, vocab_size)
        for index, datum in enumerate(data)
    ]


def _check_example(datum: tinker.Datum, where: str, loss_fn: str, context_tokens: int, vocab_size: int) -> Example:
    tokens = check_tokens(datum.model_input, where, vocab_size=vocab_size)
    if len(tokens) > context_tokens:
        raise bad_request(f"{where}: {len(tokens)} tokens do not fit the context of {context_tokens}")
    needed = LOSS_INPUTS[loss_fn] | {"target_tokens"}
    if set(datum.loss_fn_inputs) != needed:
        raise bad_request(
            f"{where}: loss_fn_inputs of {loss_fn} are {sorted(needed)}, found {sorted(datum.loss_fn_inputs)}"
        )
    inputs = {name: data.to_torch() for name, data in datum.loss_fn_inputs.items()}
    for name, tensor in inputs.items():
        if tuple(tensor.shape) != (len(tokens),):
            raise bad_request(f"{where}: {name} has shape {tuple(tensor.shape)}, expected ({len(tokens)},)")
    targets = inputs.pop("target_tokens").to(torch.int64)
    if targets.min() < 0 or targets.max() >= vocab_size:
        raise bad_request(f"{where}: target_tokens hold ids outside 0..{vocab_size - 1}")
    return Example(torch.tensor(tokens), targets, {name: tensor.float() for name, tensor in inputs.items()})


def check_tokens(model_input: tinker.ModelInput, where: str, *, vocab_size: int) -> list[int]:
    """The token ids of ``model_input``.

    Raises:
        tinker.BadRequestError: there are none, some are not in the vocabulary, or a part is not text.
    """
    try:
        tokens = model_input.to_ints()
    except ValueError as error:
        raise bad_request(f"{where}: only text can be given to the embedded backend: {error}") from error
    if not tokens:
        raise bad_request(f"{where}: expected at least one token, found none")
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        raise bad_request(f"{where}: holds token ids outside 0..{vocab_size - 1}: was another tokenizer used?")
    return tokens


def token_losses(loss_fn: str, logprobs: Tensor, inputs: Mapping[str, Tensor], clip: Clip) -> Tensor:
    """The loss of each token, of the shape of ``logprobs``; their sum is the objective."""
    if loss_fn == "cross_entropy":
        return -logprobs * inputs["weights"]
    advantages = inputs["advantages"]
    ratio = torch.exp(logprobs - inputs["logprobs"])
    if loss_fn == "importance_sampling":
        return -ratio * advantages
    clipped = ratio.clamp(clip.low, clip.high)
    if loss_fn == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages)
    return -clipped.detach() * logprobs * advantages
