"""What the request ledger of a child says was done, measured without the journal and without the usage file."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Child

from orchestrator.testing import read_ledger, read_replies

RESTORE = "create_training_client_from_state_with_optimizer"


@dataclass(frozen=True)
class Step:
    """One optimizer step, as the backend was asked for it."""

    batch: int
    """Whose datums its gradients came from."""
    trained_tokens: int


class Measured:
    """The requests of all processes of a child's folder.

    Which batch a request belongs to is told by its tokens: every batch has tasks of its own, and ``undisturbed`` is a
    finished run of the same tasks that plays its batches one after the other, ``calls_of_a_batch`` calls each.
    """

    def __init__(self, child: Child, undisturbed: Child, *, calls_of_a_batch: int) -> None:
        sampled = [line["prompt"][0] for line in read_ledger(undisturbed.ledger) if line["request"] == "sample"]
        self._batches = {tuple(prompt): index // calls_of_a_batch for index, prompt in enumerate(sampled)}
        self._child = child
        self._lines = read_ledger(child.ledger)
        self.requests = Counter(line["request"] for line in self._lines)
        calls = {(line["pid"], line["number"]): self._batch_of(line) for line in self._lines_of("sample")}
        self.calls_by_batch = Counter(calls.values())
        """``sample`` requests."""
        replies = {(line["pid"], line["reply_to"]): line["sampled"] for line in read_replies(child.ledger)}
        self.unanswered_samples = len(calls) - len(replies)
        self.sampled_tokens_by_batch: Counter[int] = Counter()
        for call, sequences in replies.items():
            self.sampled_tokens_by_batch[calls[call]] += sum(map(len, sequences))
        self.steps: list[Step] = []
        """All that were asked for."""
        self.surviving: list[Step] = []
        """Those in the newest weights."""
        self._replay()

    @property
    def stored_tokens_by_batch(self) -> Counter[int]:
        """Sampled tokens of the rollouts on disk, and of the turns of unfinished ones."""
        stored: Counter[int] = Counter()
        finished = set()
        for rollout in self._lines_in("rollouts"):
            stored[rollout["batch"]] += sum(len(turn["sampled_tokens"]) for turn in rollout["turns"])
            finished.add(_attempt(rollout))
        for call in self._lines_in("turns"):
            if _attempt(call) not in finished:
                stored[call["batch"]] += sum(len(sample["sampled_tokens"]) for sample in call["samples"])
        return stored

    def _lines_in(self, folder: str) -> Iterator[dict[str, Any]]:
        """Those of all files in a folder of the run directory; a torn line is no line."""
        for path in (self._child.log_path / folder).glob("*.jsonl"):
            text = path.read_text()
            yield from map(json.loads, text[: text.rfind("\n") + 1].splitlines())

    @property
    def saves_on_disk(self) -> int:
        """Samplers and states."""
        saved = self._child.log_path / "local" / "run"
        return sum(len(list(folder.iterdir())) for folder in (saved / "weights", saved / "sampler_weights"))

    def _replay(self) -> None:
        """Follows the weights: what is restored has the steps that it had when it was saved."""
        saved: dict[str, list[Step]] = {}
        gradients: list[list[int]] = []
        for line in self._lines:
            match line["request"]:
                case "create_lora_training_client":
                    self.surviving = []
                case "create_training_client_from_state_with_optimizer":
                    self.surviving = list(saved[Path(line["names"][0]).name])
                case "forward_backward":
                    gradients = line["datums"]
                case "optim_step":
                    step = Step(self._batch_of({"prompt": gradients}), sum(map(len, gradients)))
                    self.steps.append(step)
                    self.surviving.append(step)
                case "save_state":
                    saved.setdefault(line["names"][0], list(self.surviving))

    def _lines_of(self, request: str) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["request"] == request]

    def _batch_of(self, line: dict[str, Any]) -> int:
        """The one batch of whose prompts the line's first one is a continuation."""
        tokens = tuple(line["prompt"][0])
        [batch] = {batch for prompt, batch in self._batches.items() if tokens[: len(prompt)] == prompt}
        return batch


def _attempt(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("batch", "mode", "group", "member", "attempt"))
