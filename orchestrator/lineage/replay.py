"""The ``replay`` command: one train step of a run repeated with other settings, beside the same step as it was.

Both are taken from the run's weights of that batch: the original from its stored datums, the replay from datums that
are made again, under the changed settings, from the stored rollouts. Nothing is sampled, saved or written.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tinker
import torch
from torch import Tensor

from orchestrator.backends.service import make_backend
from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.journal.past import PastRun
from orchestrator.lineage.failures import failures_told
from orchestrator.lineage.measured import AfterStep, MeasuredStep, measure
from orchestrator.names import State
from orchestrator.rollouts.outcomes import read_rollouts
from orchestrator.rollouts.trajectories import form_training_batch
from orchestrator.training.datums import TrainStepInput, load, same_datum
from orchestrator.training.past import PastWeights, kept_base
from orchestrator.training.prepare import prepare_step

NO_STORE = "replayed"
"""Where the embedded backend would save, under the run directory; a replay saves nothing, so it is never made."""


@dataclass(frozen=True, slots=True)
class Side:
    """A train step, and what it did."""

    skipped: str | None
    """Why no step was taken."""
    step: TrainStepInput | None = None
    measured: MeasuredStep | None = None

    def facts(self) -> dict[str, float]:
        """Numbers of the step as a whole, by name."""
        if self.step is None or self.measured is None:
            return {"train/optim_steps": 0.0, "train/datums": 0.0}
        counted = {
            "train/optim_steps": float(self.step.optim_steps),
            "train/datums": float(len(self.step.datums)),
            "train/trained_tokens": float(self.step.trained_tokens),
            "optim/lr": self.step.learning_rate,
        }
        return counted | dict(self.step.metrics) | dict(self.measured.metrics)


@dataclass(frozen=True, slots=True)
class Replay:
    """A train step as it was, and as it would have been."""

    batch: int
    original: Side
    replay: Side
    changed_datums: int
    """How many datums are not the same, bit for bit, in both."""
    shifts: Mapping[str, tuple[float | None, float | None]]
    """What became of logprobs, on the datums of the original, else of the replay; see ``_shifts``."""
    apart: tuple[float, float] | None
    """Mean and largest distance between a trained token's logprob after the original and after the replay."""
    unlike_journal: Sequence[str]
    """What the original, repeated now, does not give as it was journaled."""

    @property
    def differs(self) -> bool:
        """Whether anything at all is another number."""
        return (
            self.original.facts() != self.replay.facts()
            or self.original.skipped != self.replay.skipped
            or self.changed_datums > 0
            or (self.apart is not None and self.apart[1] > 0)
            or _updates(self.original) != _updates(self.replay)
        )


def replay(past: PastRun, config: Config, batch: int) -> Replay:
    """Repeats the train step of ``batch``, which is in the journal, under ``config``.

    Raises:
        ConfigError: the service cannot be reached.
        UnrecoverableError, SideFileDamagedError: what the step was taken from cannot be made again.
        BackendError: the service failed.
    """
    with failures_told(past.log_path):
        return asyncio.run(_replay(past, config, batch))


async def _replay(past: PastRun, config: Config, batch: int) -> Replay:
    backend = make_backend(config, past.log_path / NO_STORE, base=kept_base(past))
    await backend.connect()
    facts = past.run.batches[batch].results[State.TRAIN_STEP]
    stored = None if facts["skipped"] else load(past.log_path, batch, sha256=facts["sha256"])
    made, skipped = await _make_step(past, config, backend.service, batch)
    known = stored or made
    shown = () if known is None else known.datums
    original = await _take(past, backend.service, stored, facts["reason"], shown)
    repeated = await _take(past, backend.service, made, skipped, shown)
    measured = original.measured
    now = {} if measured is None else measured.metrics
    unlike = [name for name, value in now.items() if facts["metrics"].get(name) != value]
    both = [side.measured.after for side in (original, repeated) if side.measured is not None]
    apart = _distance(shown, *both) if len(both) == 2 else None
    changed = _changed_datums(stored, made)
    return Replay(batch, original, repeated, changed, _all_shifts(shown, original, repeated), apart, unlike)


async def _make_step(
    past: PastRun, config: Config, service: ServiceClient, batch: int
) -> tuple[TrainStepInput | None, str | None]:
    """The step under ``config``, or why there is none."""
    played = past.run.batches[batch].results[State.ROLLOUT]
    rollouts = read_rollouts(past.log_path / Path(played["file"]), sha256=played["sha256"])
    training_batch = form_training_batch(
        rollouts,
        policy_version=batch,
        group_size=config.group_size,
        on_failure=config.on_failure,
        remove_constant=config.remove_constant_reward_groups,
    )
    if training_batch.skip_reason is not None:
        return None, training_batch.skip_reason
    schedule_batches = past.run.schedule_batches
    return await prepare_step(config, service, training_batch, batch=batch, schedule_batches=schedule_batches), None


async def _take(
    past: PastRun,
    service: ServiceClient,
    step: TrainStepInput | None,
    skipped: str | None,
    shown: Sequence[tinker.Datum],
) -> Side:
    if step is None:
        return Side(skipped)
    return Side(None, step, await measure(PastWeights(past, service), step, shown))


def _updates(side: Side) -> Sequence[Mapping[str, float]]:
    return () if side.measured is None else side.measured.updates


def _changed_datums(stored: TrainStepInput | None, made: TrainStepInput | None) -> int:
    first, second = (() if step is None else step.datums for step in (stored, made))
    same = sum(map(same_datum, first, second))
    return max(len(first), len(second)) - same


def _all_shifts(
    shown: Sequence[tinker.Datum], original: Side, repeated: Side
) -> dict[str, tuple[float | None, float | None]]:
    one, other = ({} if side.measured is None else _shifts(shown, side.measured.after) for side in (original, repeated))
    return {name: (one.get(name), other.get(name)) for name in {**one, **other}}


def _shifts(shown: Sequence[tinker.Datum], after: AfterStep) -> dict[str, float]:
    """How far the step moved the logprobs of trained tokens from where they were when sampled."""
    pairs = [
        (logprobs - _tensor(datum, "logprobs"), _tensor(datum, "advantages"), _tensor(datum, "mask") > 0)
        for datum, logprobs in zip(shown, after, strict=True)
    ]
    shift = torch.cat([moved[mask] for moved, _, mask in pairs])
    advantage = torch.cat([advantages[mask] for _, advantages, mask in pairs])
    means = {
        "advantage > 0": shift[advantage > 0],
        "advantage < 0": shift[advantage < 0],
        "all": shift,
    }
    shifts = {f"mean, {where}": float(values.mean()) for where, values in means.items() if len(values)}
    return shifts | {"largest": float(shift.abs().max())}


def _distance(shown: Sequence[tinker.Datum], one: AfterStep, other: AfterStep) -> tuple[float, float]:
    masks = [_tensor(datum, "mask") > 0 for datum in shown]
    distance = torch.cat([(a - b).abs()[mask] for a, b, mask in zip(one, other, masks, strict=True)])
    return float(distance.mean()), float(distance.max())


def _tensor(datum: tinker.Datum, name: str) -> Tensor:
    return datum.loss_fn_inputs[name].to_torch()
