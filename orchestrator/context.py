"""What a state's body is given and what it gives back.

A body never chooses the next state and never imports another state or the machine: it reads its context, does its
effect, and returns its result for the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.disk import Disk
from orchestrator.errors import StopRequested
from orchestrator.journal.durable import sha256_of
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind
from orchestrator.journal.recovery import Checkpoint, RunState
from orchestrator.names import State
from orchestrator.reporting.metrics import MetricRows
from orchestrator.reporting.progress import Progress
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.collect import Collector, CollectProgress
from orchestrator.rollouts.dataset import Task, TaskBatches
from orchestrator.rollouts.outcomes import Mode, Outcome, StoredRollout, rollout_path, totals
from orchestrator.rollouts.turns import turn_path
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.probe import OptimizerProbe
from orchestrator.training.publish import Publisher
from orchestrator.training.weights import TrainedWeights


@dataclass(frozen=True, slots=True)
class StateResult:
    """What a body hands to the journal with its transition."""

    facts: Mapping[str, Any]
    """JSON values; payloads stay in side files, named here with their sha256."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """``area/name`` values of the batch's metric row, all finite."""

    def to_json(self) -> dict[str, Any]:
        """The ``result`` of the transition record."""
        return {**self.facts, "metrics": dict(self.metrics)}


class Recorder:
    """The only writing access to the journal that a body has: facts about what is saved, as they come true."""

    def __init__(self, journal: Journal) -> None:
        """Records go to ``journal`` at once."""
        self._journal = journal

    def checkpoint_saved(self, checkpoint: Checkpoint) -> None:
        """``checkpoint`` is complete and can be restored."""
        self._journal.append(
            Kind.CHECKPOINT_SAVED,
            batch=checkpoint.batch,
            name=checkpoint.name,
            checkpoint_kind=checkpoint.checkpoint_kind,
            state_path=checkpoint.state_path,
            sampler_path=checkpoint.sampler_path,
            expires_at=checkpoint.expires_at,
        )

    def optimizer_probed(self, probe: OptimizerProbe) -> None:
        """The backend was probed; it passed or it did not."""
        self._journal.append(
            Kind.OPTIMIZER_PROBED,
            passed=probe.passed,
            restored_difference=probe.restored_difference,
            fresh_difference=probe.fresh_difference,
        )

    def checkpoint_lost(self, checkpoint: Checkpoint, *, reason: str) -> None:
        """``checkpoint`` must not be relied on any more."""
        self._journal.append(
            Kind.CHECKPOINT_LOST,
            batch=checkpoint.batch,
            name=checkpoint.name,
            state_path=checkpoint.state_path,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """What one process holds for all states; made by ``run``, closed by it."""

    disk: Disk
    service: ServiceClient
    train_batches: TaskBatches
    eval_sets: Mapping[str, Sequence[Task]]
    """By the area of their metrics, e.g. ``test``."""
    capture: Capture
    collector: Collector
    weights: TrainedWeights
    ledger: CheckpointLedger
    publisher: Publisher
    metric_rows: MetricRows
    progress: Progress


@dataclass(frozen=True, slots=True)
class Played:
    """A state's rollouts, all of them finished and stored."""

    rollouts: Sequence[StoredRollout]
    """Every attempt, in the order of group, member and attempt."""
    facts: Mapping[str, Any]
    """Outcomes, tokens, first error, mismatched replays, file and sha256, for the journal."""


@dataclass(frozen=True, slots=True)
class StateContext:
    """One entry into one state."""

    config: Config
    log_path: Path
    run: RunState
    """What the journal says; bodies only read it."""
    resources: Resources
    recorder: Recorder
    log: FilteringBoundLogger
    stop: asyncio.Event
    """Set once the run is asked to stop: start nothing new, finish or abandon what is under way."""

    @property
    def batch(self) -> int:
        """The batch that the machine is in."""
        return self.run.batch

    @property
    def num_batches(self) -> int:
        """How many batches the run trains; the final evaluation happens in batch ``num_batches``."""
        return self.run.num_batches

    async def play(self, mode: Mode, tasks: Sequence[Task], *, group_size: int) -> Played:
        """Has the agents play ``tasks``, ``group_size`` rollouts each, against this batch's policy.

        Rollouts that an earlier process stored are not sampled again, nor are the turns of those that it left
        unfinished.

        Raises:
            StopRequested: ``stop`` was set before all rollouts were stored.
            JournalWriteError: a rollout or a turn could not be stored.
        """
        published = await self.resources.publisher.serve(self.run, recorder=self.recorder)
        path = rollout_path(self.log_path, self.batch, mode)
        capture = self.resources.capture
        async with capture.storing(turn_path(self.log_path, self.batch, mode), disk=self.resources.disk):
            rollouts = await self.resources.collector.collect(
                batch=self.batch,
                mode=mode,
                tasks=tasks,
                group_size=group_size,
                resources_id=published.resources_id,
                path=path,
                stop=self.stop,
                on_progress=self._show,
            )
            mismatches = capture.count_mismatches(rollouts)
        if sum(rollout.last for rollout in rollouts) < len(tasks) * group_size:
            raise StopRequested
        if mismatches:
            self.log.warning(
                f"{mismatches} of {len(rollouts)} rollouts did not ask for all their kept turns when they were run "
                "again: an agent that is not deterministic has its turns sampled anew"
            )
        facts = {
            **totals(rollouts),
            "replay_mismatches": mismatches,
            "file": str(path.relative_to(self.log_path)),
            "sha256": await asyncio.to_thread(sha256_of, path),
        }
        return Played(rollouts, facts)

    def _show(self, collected: CollectProgress) -> None:
        failed = collected.num_finished - collected.outcomes[Outcome.SUCCEEDED]
        self.resources.progress.rollouts(collected.num_finished, failed, collected.num_total, collected.sampled_tokens)

    def result_of(self, state: State) -> Mapping[str, Any]:
        """What ``state`` journaled in this batch; it comes earlier in the cycle, so the record exists."""
        return self.run.batches[self.batch].results[state]


Body = Callable[[StateContext], Awaitable[StateResult]]
"""A state's effect."""
