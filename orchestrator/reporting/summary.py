"""The panel at the end of a run: what was reached, what it took, and where to read more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from orchestrator.names import counted
from orchestrator.reporting.progress import duration
from orchestrator.reporting.spending import Spent
from orchestrator.reporting.work import WorkDone, work_lost

EDGE_BATCHES = 3
"""How many batches at either end the reward is averaged over."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What the journal says about a run, in plain values."""

    log_path: str
    """As the user wrote it: the commands shown are meant to be copied."""
    finished: bool
    """Whether the run reached its last batch; otherwise the same command resumes it."""
    batches_done: int
    num_batches: int
    wall_seconds: float
    """Time that processes of the run were at work, summed."""
    processes: int
    """How many processes worked on the run: one more than the kills, interruptions and failures survived."""
    rewards: Sequence[float | None]
    """Mean reward of each batch; None where no rollout succeeded."""
    evaluations: Sequence[float | None]
    """Mean reward of each evaluation, the first and the final among them."""
    passes: Mapping[int, Sequence[float]]
    """By k, pass@k of each evaluation whose tasks are played more than once; empty where they are played once."""
    sampled_tokens: int
    trained_tokens: int
    optim_steps: int
    outcomes: Mapping[str, int]
    """Training rollouts by outcome."""
    checkpoints: Sequence[str]
    """Where the live checkpoints are, fit for ``load_checkpoint_path``; the newest last."""
    work: WorkDone | None
    """What was made, kept and lost; None: it was not recorded."""
    spent: Mapping[str, Spent] = field(default_factory=dict)
    """What the run is charged for, by state."""


def summary_panel(summary: RunSummary) -> Panel:
    """The panel for the console."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    batches = f"{summary.batches_done} of {summary.num_batches}, {counted(summary.optim_steps, 'optimizer step')}"
    rows.add_row("batches", batches)
    restarts = summary.processes - 1
    survived = f", {counted(restarts, 'restart')} survived" if restarts else ""
    rows.add_row("time", f"{duration(summary.wall_seconds)}{survived}")
    rewards = [reward for reward in summary.rewards if reward is not None]
    if len(rewards) > 1:
        first, last = rewards[:EDGE_BATCHES], rewards[-EDGE_BATCHES:]
        rows.add_row(
            "reward", _change(fmean(first), fmean(last), f"first {counted(len(first), 'batch')}", f"last {len(last)}")
        )
    evaluations = [reward for reward in summary.evaluations if reward is not None]
    if len(evaluations) > 1:
        rows.add_row("evaluation", _change(evaluations[0], evaluations[-1], "first", "final"))
    elif evaluations:
        rows.add_row("evaluation", f"{evaluations[0]:.3f}")
    for k, rates in summary.passes.items():
        if len(rates) > 1:
            rows.add_row(f"pass@{k}", _change(rates[0], rates[-1], "first", "final"))
        else:
            rows.add_row(f"pass@{k}", f"{rates[0]:.3f}")
    rows.add_row("tokens", f"{summary.sampled_tokens:,} sampled, {summary.trained_tokens:,} trained on")
    for number, (state, spent) in enumerate(summary.spent.items()):
        rows.add_row("" if number else "charged", f"{state}: {spent.words()}")
    rows.add_row("work lost", work_lost(summary.work))
    outcomes = [f"{count:,} {outcome}" for outcome, count in summary.outcomes.items() if count]
    rows.add_row("rollouts", ", ".join(outcomes) or "none")
    rows.add_row("checkpoints", _checkpoints(summary.checkpoints))
    rows.add_row("files", Text(summary.log_path))
    rows.add_row("read", Text(f"python -m orchestrator status {summary.log_path}"))
    rows.add_row("", Text(f"jq . {summary.log_path}/journal.jsonl"))
    title = "run finished" if summary.finished else "run stopped: the same command resumes it"
    return Panel(rows, title=title, border_style="green" if summary.finished else "yellow", expand=False)


def _change(before: float, after: float, before_name: str, after_name: str) -> Text:
    style = "green" if after > before else "red" if after < before else ""
    return Text.assemble(
        f"{before:.3f} ({before_name}) -> {after:.3f} ({after_name})  ", (f"{after - before:+.3f}", style)
    )


def _checkpoints(paths: Sequence[str]) -> Text:
    if not paths:
        return Text("none")
    return Text(f"{len(paths)}, the newest {paths[-1]}")
