"""A warm start of the built-in model: cross-entropy on transcripts, so that there is play for RL to select from."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import structlog
import torch
from tinker import types
from tinker_cookbook import renderers
from torch import Tensor

from orchestrator.backends.local.losses import DEFAULT_CLIP, Example
from orchestrator.backends.local.model import AdapterSpec, LanguageModel
from orchestrator.backends.local.training import Trainer
from orchestrator.errors import ConfigError

STEPS = 200
TRANSCRIPTS_A_STEP = 16
LEARNING_RATE = 3e-3
FINAL_LEARNING_RATE = 3e-4
STEPS_A_LOG_LINE = 50

Transcript = Sequence[Mapping[str, Any]]
"""Messages with ``role`` and ``content``; every assistant message is learned."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What the model is warm-started on."""

    transcripts: Sequence[Transcript]
    renderer_name: str

    @classmethod
    def load(cls, target: str, renderer_name: str) -> "WarmStart":
        """The transcripts of the function that ``target`` (``module:attribute``) names.

        Raises:
            ConfigError: there is no such function, or it gives no transcripts.
        """
        module_name, _, attribute = target.partition(":")
        try:
            make = getattr(import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"local.warm_start={target}: expected module:attribute of a function: {error}") from error
        transcripts = make()
        if not transcripts:
            raise ConfigError(f"local.warm_start={target}: expected transcripts, the function gave none")
        return cls(transcripts, renderer_name)

    def decided_by(self) -> dict[str, Any]:
        """Everything that the weights depend on, as JSON values."""
        return {
            "transcripts": [[dict(message) for message in transcript] for transcript in self.transcripts],
            "renderer_name": self.renderer_name,
            "steps": [STEPS, TRANSCRIPTS_A_STEP, LEARNING_RATE, FINAL_LEARNING_RATE],
        }


def warm_weights(model: LanguageModel, warm_start: WarmStart) -> dict[str, Tensor]:
    """All parameters of ``model`` after ``STEPS`` Adam steps over the transcripts, taken in order and over again."""
    renderer = renderers.get_renderer(warm_start.renderer_name, model.tokenizer)
    examples = [_examples(renderer, transcript) for transcript in warm_start.transcripts]
    spec = AdapterSpec(rank=0)
    trainer = Trainer(model, spec, model.fresh_weights(spec, seed=0))
    began = time.monotonic()
    for step in range(STEPS):
        first = step * TRANSCRIPTS_A_STEP
        chosen = [
            example for index in range(first, first + TRANSCRIPTS_A_STEP) for example in examples[index % len(examples)]
        ]
        output = trainer.forward_backward(chosen, "cross_entropy", DEFAULT_CLIP)
        rate = LEARNING_RATE + (FINAL_LEARNING_RATE - LEARNING_RATE) * step / (STEPS - 1)
        trainer.optim_step(types.AdamParams(learning_rate=rate, eps=1e-8))
        if step % STEPS_A_LOG_LINE == 0 or step == STEPS - 1:
            learned = sum(float(example.inputs["weights"].sum()) for example in chosen)
            loss = output.metrics["loss:sum"] / max(learned, 1.0)
            seconds = round(time.monotonic() - began, 1)
            log.info("warm start", step=step + 1, steps=STEPS, loss_per_token=round(loss, 4), seconds=seconds)
    return trainer.weights()


def _examples(renderer: renderers.Renderer, transcript: Transcript) -> list[Example]:
    messages = [renderers.Message(role=message["role"], content=message["content"]) for message in transcript]
    rendered = renderer.build_supervised_examples(messages, renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    return [
        Example(tokens[:-1], tokens[1:], {"weights": weights[1:].float()})
        for tokens, weights in ((torch.tensor(prompt.to_ints()), weights) for prompt, weights in rendered)
    ]
