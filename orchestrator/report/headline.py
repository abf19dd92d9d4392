"""The numbers that a report begins with, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean

from orchestrator.report.model import Report
from orchestrator.reporting.progress import duration
from orchestrator.reporting.summary import EDGE_BATCHES
from orchestrator.reporting.work import work_lost


@dataclass(frozen=True, slots=True)
class Fact:
    """One number, what it is of, and what it means."""

    name: str
    value: str
    note: str = ""
    tone: str = ""
    """``good``, ``bad`` or nothing; said in words too."""


def headline(report: Report) -> list[Fact]:
    """The facts, the most asked for first."""
    summary = report.summary
    return [
        Fact(
            "Batches",
            f"{summary.batches_done:,} of {summary.num_batches:,}",
            f"{summary.optim_steps:,} optimizer steps",
        ),
        _change("Reward", summary.rewards, EDGE_BATCHES),
        _change("Evaluation", summary.evaluations, 1),
        Fact("Tokens", f"{summary.sampled_tokens:,}", f"sampled; {summary.trained_tokens:,} trained on"),
        Fact("Time at work", duration(report.processes[-1].end_seconds if report.processes else 0.0), _elapsed(report)),
        _survived(report),
        Fact("Work lost", *_lost(report)),
        _verdict(report),
    ]


def _change(name: str, values: Sequence[float | None], edge: int) -> Fact:
    known = [value for value in values if value is not None]
    if not known:
        return Fact(name, "none yet")
    if len(known) == 1:
        return Fact(name, f"{known[0]:.3f}", "only one so far")
    first, last = fmean(known[:edge]), fmean(known[-edge:])
    over = f"mean of the first {edge} batches to the last {edge}" if edge > 1 else "first to last"
    tone = "good" if last > first else "bad" if last < first else ""
    return Fact(name, f"{first:.3f} → {last:.3f}", f"{last - first:+.3f}, {over}", tone)


def _elapsed(report: Report) -> str:
    if not report.processes:
        return ""
    began = datetime.fromisoformat(report.processes[0].started_at)
    idle = sum(process.idle_seconds for process in report.processes)
    return f"{duration(idle)} idle between processes, since {began:%Y-%m-%d %H:%M} UTC"


def _survived(report: Report) -> Fact:
    resumes = max(0, len(report.processes) - 1)
    others = sum(process.ending in {"interrupted", "failed", "refused", "budget"} for process in report.processes)
    notes = [f"{resumes} resume{'' if resumes == 1 else 's'}"]
    if others:
        notes.append(f"{others} other stop{'' if others == 1 else 's'}")
    return Fact("Kills survived" if report.summary.finished else "Kills", str(report.kills), ", ".join(notes))


def _lost(report: Report) -> tuple[str, str]:
    if report.work is None:
        return "not recorded", ""
    sampled = report.work.total.sampled_tokens
    value = "none" if not sampled.lost else f"{sampled.lost:,}"
    return f"{value} of {sampled.made:,} sampled tokens", work_lost(report.work)


def _verdict(report: Report) -> Fact:
    if report.verdict is None:
        return Fact("Verify", "not judged", report.unjudged)
    if report.verdict.passed:
        return Fact("Verify", "PASS", "journal, side files, views and checkpoints agree", "good")
    return Fact("Verify", "FAIL", "see the verdict below", "bad")
