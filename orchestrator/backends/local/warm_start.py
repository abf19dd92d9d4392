"""A warm start of the built-in model: cross-entropy on transcripts, so that there is play for RL to select from."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

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

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Transcript: TypeAlias = Messages | Mapping[str, Any]
"""Messages as OpenAI's API has them, or ``{"messages": ..., "tools": ...}`` where tools are offered with them.

Every assistant message is learned."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """What the model is warm-started on."""

    transcripts: Sequence[Transcript]
    renderer_name: str
    steps: int | None = None
    """Optimizer steps; None: ``STEPS``."""

    @classmethod
    def load(cls, target: str, renderer_name: str, *, steps: int | None = None) -> "WarmStart":
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
        return cls(transcripts, renderer_name, steps)

    def decided_by(self) -> dict[str, Any]:
        """Everything that the weights depend on, as JSON values."""
        return {
            "transcripts": [_plain(transcript) for transcript in self.transcripts],
            "renderer_name": self.renderer_name,
            "steps": [self.steps or STEPS, TRANSCRIPTS_A_STEP, LEARNING_RATE, FINAL_LEARNING_RATE],
        }


def warm_weights(model: LanguageModel, warm_start: WarmStart) -> dict[str, Tensor]:
    """All parameters of ``model`` after its Adam steps over the transcripts, taken in order and over again."""
    renderer = renderers.get_renderer(warm_start.renderer_name, model.tokenizer)
    examples = [_examples(renderer, transcript) for transcript in warm_start.transcripts]
    spec = AdapterSpec(rank=0)
    trainer = Trainer(model, spec, model.fresh_weights(spec, seed=0))
    began = time.monotonic()
    steps = warm_start.steps or STEPS
    for step in range(steps):
        first = step * TRANSCRIPTS_A_STEP
        chosen = [index % len(examples) for index in range(first, first + TRANSCRIPTS_A_STEP)]
        # Tools take ten times as many tokens as the rest: apart, or all would be padded to their length.
        with_tools = [index for index in chosen if isinstance(warm_start.transcripts[index], Mapping)]
        without = [index for index in chosen if index not in with_tools]
        batches = [[each for index in some for each in examples[index]] for some in (without, with_tools) if some]
        outputs = [trainer.forward_backward(batch, "cross_entropy", DEFAULT_CLIP) for batch in batches]
        rate = LEARNING_RATE + (FINAL_LEARNING_RATE - LEARNING_RATE) * step / max(steps - 1, 1)
        trainer.optim_step(types.AdamParams(learning_rate=rate, eps=1e-8))
        if step % STEPS_A_LOG_LINE == 0 or step == steps - 1:
            learned = sum(float(example.inputs["weights"].sum()) for batch in batches for example in batch)
            loss = sum(output.metrics["loss:sum"] for output in outputs) / max(learned, 1.0)
            seconds = round(time.monotonic() - began, 1)
            log.info("warm start", step=step + 1, steps=steps, loss_per_token=round(loss, 4), seconds=seconds)
    return trainer.weights()


def _examples(renderer: renderers.Renderer, transcript: Transcript) -> list[Example]:
    given: Messages
    tools: list[renderers.ToolSpec] = []
    if isinstance(transcript, Mapping):
        given, tools = transcript["messages"], [_tool(tool["function"]) for tool in transcript.get("tools", ())]
    else:
        given = transcript
    declared = renderer.create_conversation_prefix_with_tools(tools) if tools else []
    messages = [*declared, *(_message(message) for message in given)]
    rendered = renderer.build_supervised_examples(messages, renderers.TrainOnWhat.ALL_ASSISTANT_MESSAGES)
    return [
        Example(tokens[:-1], tokens[1:], {"weights": weights[1:].float()})
        for tokens, weights in ((torch.tensor(prompt.to_ints()), weights) for prompt, weights in rendered)
    ]


def _message(message: Mapping[str, Any]) -> renderers.Message:
    rendered = renderers.Message(role=message["role"], content=message.get("content") or "")
    if message.get("tool_calls"):
        rendered["tool_calls"] = [renderers.ToolCall.model_validate(call) for call in message["tool_calls"]]
    if "tool_call_id" in message:
        rendered["tool_call_id"] = message["tool_call_id"]
    return rendered


def _tool(function: Mapping[str, Any]) -> renderers.ToolSpec:
    # In this order, which is the gateway's: what is declared is its text.
    return renderers.ToolSpec(
        name=function["name"], description=function.get("description", ""), parameters=function["parameters"]
    )


def _plain(transcript: Transcript) -> Any:
    if isinstance(transcript, Mapping):
        return {**transcript, "messages": _plain(transcript["messages"])}
    return [dict(message) for message in transcript]
