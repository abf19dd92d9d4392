"""Fills the summary of a run from its journal."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.backends.places import saved_at
from orchestrator.journal.recovery import RunState
from orchestrator.names import State
from orchestrator.reporting.spending import Spending
from orchestrator.reporting.summary import RunSummary
from orchestrator.reporting.work import WorkDone

PASSED = "test/pass_at_"


def summarize(run: RunState, log_path: Path, work: WorkDone | None, spending: Spending) -> RunSummary:
    """What the journal, folded to ``run``, says of the whole run; ``log_path`` is told as it is given."""
    played = [facts.results[State.ROLLOUT] for facts in run.batches.values() if State.ROLLOUT in facts.results]
    trained = [facts.results[State.TRAIN_STEP] for facts in run.batches.values() if State.TRAIN_STEP in facts.results]
    evaluated = [
        facts.results[State.MAYBE_EVALUATE]
        for facts in run.batches.values()
        if facts.results.get(State.MAYBE_EVALUATE, {}).get("evaluated")
    ]
    outcomes: Counter[str] = Counter()
    for result in played:
        outcomes.update(result["outcomes"])
    return RunSummary(
        log_path=str(log_path),
        finished=run.state is State.FINISHED,
        batches_done=run.batch,
        num_batches=run.num_batches,
        wall_seconds=spending.wall_seconds,
        processes=run.processes,
        rewards=[result["metrics"].get("rollout/reward_mean") for result in trained],
        evaluations=[result["metrics"].get("test/reward_mean") for result in evaluated],
        passes=_passes([result["metrics"] for result in evaluated]),
        sampled_tokens=sum(result["sampled_tokens"] for result in [*played, *evaluated]),
        trained_tokens=sum(result["trained_tokens"] for result in trained),
        optim_steps=sum(result["optim_steps"] for result in trained),
        outcomes=outcomes,
        checkpoints=[saved_at(checkpoint.state_path, log_path) for checkpoint in run.checkpoints],
        work=work,
        spent={state.value: spent for state, spent in spending.states.items()},
    )


def _passes(metrics: Sequence[Mapping[str, float]]) -> dict[int, list[float]]:
    """pass@k of each evaluation, by k; empty where tasks are played once, and the reward says as much."""
    by_k: dict[int, list[float]] = defaultdict(list)
    for row in metrics:
        for name, value in row.items():
            if name.startswith(PASSED):
                by_k[int(name.removeprefix(PASSED))].append(value)
    return {k: by_k[k] for k in sorted(by_k)} if len(by_k) > 1 else {}
