"""The charts of a report by batch, each with a table of the same numbers, and the list of all charts."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestrator.names import CYCLE, State
from orchestrator.report.drawing import Figure, Values, bar_chart, line_chart, specification, with_kills
from orchestrator.report.history import checkpoints, lost, timeline
from orchestrator.report.model import Report
from orchestrator.report.timeline import KILLED
from orchestrator.rollouts.outcomes import Outcome

MAX_POINTS = 300
"""Of one curve; in a longer run each point is the mean of as many batches as it takes."""
KL_NOTE = "Between the policy as it sampled and as it is trained, by each estimator that the trainer logs."
_KL = re.compile(r"(^|[/_])kl([/_]|$)")


def figures(report: Report) -> dict[str, Figure]:
    """Every chart by name."""
    batches = _Batches(report)
    kl = [key for key in batches.keys if _KL.search(key)]
    drawn = [
        _reward(batches),
        _curves(batches, "kl", "KL divergence", "nats", kl, KL_NOTE),
        _curves(batches, "entropy", "Entropy of the policy", "nats a token", ["optim/entropy"]),
        _curves(batches, "learning-rate", "Learning rate", "learning rate", ["optim/lr"]),
        _bars(
            batches,
            "tokens",
            "Tokens sampled",
            "tokens",
            {"training": "rollout/sampled_tokens", "test": "test/sampled_tokens"},
        ),
        _bars(batches, "trained", "Tokens trained on", "tokens", {"trained on": "trained_tokens"}),
        timeline(report),
        _bars(
            batches,
            "seconds",
            "Time in each state",
            "seconds",
            {state.value: f"time/{state}_seconds" for state in CYCLE if state is not State.LOG},
            note="Of the process that left the state; what killed ones spent in it is in the timeline.",
        ),
        _bars(
            batches,
            "outcomes",
            "How training rollouts ended",
            "rollouts",
            {outcome.value: f"rollout/{outcome}" for outcome in Outcome},
            note="Only succeeded rollouts are trained on.",
        ),
        checkpoints(report),
        lost(report),
    ]
    return {figure.name: figure for figure in drawn}


class _Batches:
    """The metric rows of a run, with what else the journal knows of their batches; binned where they are too many."""

    def __init__(self, report: Report) -> None:
        trained = {
            batch: facts.results[State.TRAIN_STEP].get("trained_tokens")
            for batch, facts in report.run.batches.items()
            if State.TRAIN_STEP in facts.results
        }
        self.report = report
        self.rows = [{**row, "trained_tokens": trained.get(row["step"])} for row in report.rows]
        self.keys = sorted({key for row in self.rows for key, value in row.items() if isinstance(value, int | float)})
        self.size = max(1, -(-len(self.rows) // MAX_POINTS))
        self.last = report.run.batch
        self.note = "" if self.size == 1 else f" Each point is the mean of {self.size} batches."
        killed = [process for process in report.processes if process.ending == KILLED]
        self.kills: Values = [
            {"batch": int(process.ended_in.rpartition(" ")[2]), "label": f"kill {number}: {process.ended_in}"}
            for number, process in enumerate(killed, start=1)
        ][-MAX_POINTS:]

    def points(self, key: str) -> list[tuple[int, float]]:
        """(first batch, mean) of each bin that has a number under ``key``."""
        points = []
        for start in range(0, len(self.rows), self.size):
            known = [row[key] for row in self.rows[start : start + self.size] if row.get(key) is not None]
            if known:
                points.append((int(self.rows[start]["step"]), known[0] if len(known) == 1 else fmean(known)))
        return points

    def told_kills(self) -> str:
        """The kills, in words."""
        return f" Killed in {', '.join(kill['label'].partition(': ')[2] for kill in self.kills)}." if self.kills else ""


def _reward(batches: _Batches) -> Figure:
    values: Values = [
        {"batch": batch, "series": "training", "reward": reward}
        for batch, reward in batches.points("rollout/reward_mean")
    ]
    areas = [
        key.removesuffix("/reward_mean") for key in batches.keys if re.fullmatch(r"test(/[^/]+)?/reward_mean", key)
    ]
    for area in areas:
        # Evaluations are few: each is drawn, however many batches a point of the training curve stands for.
        values += [
            {
                "batch": row["step"],
                "series": area,
                "reward": row[f"{area}/reward_mean"],
                "stderr": row.get(f"{area}/reward_stderr"),
            }
            for row in batches.rows
            if row.get(f"{area}/reward_mean") is not None
        ][-MAX_POINTS:]
    order = ["training", *areas]
    chart = line_chart(
        "reward", values, "reward", "mean reward", order=order, tooltip=("batch", "series", "reward", "stderr")
    )
    words = "".join(_course(name, values, "reward") for name in order)
    note = "Training rewards are of sampled play, test rewards of the evaluations."
    kills = " Upright dashed lines: the run was killed there, and resumed." if batches.kills else ""
    return Figure(
        "reward",
        "Reward",
        f"Mean reward by batch. {words}{batches.told_kills()}",
        note + kills + batches.note,
        specification(with_kills(chart, batches.kills), height_pixels=300) if values else None,
        ("batch", "series", "mean reward", "standard error"),
        [(value["batch"], value["series"], value["reward"], value.get("stderr")) for value in values],
    )


def _curves(batches: _Batches, name: str, title: str, unit: str, keys: Sequence[str], note: str = "") -> Figure:
    series = {key: key.removeprefix("optim/") for key in keys}
    values: Values = [
        {"batch": batch, "series": series[key], "value": value} for key in keys for batch, value in batches.points(key)
    ]
    chart = line_chart(name, values, "value", unit, order=list(series.values()), tooltip=("batch", "series", "value"))
    return Figure(
        name,
        title,
        f"{title} by batch. {''.join(_course(told, values, 'value') for told in series.values())}",
        note + batches.note,
        specification(chart) if values else None,
        ("batch", "series", unit),
        [(value["batch"], value["series"], value["value"]) for value in values],
    )


def _bars(batches: _Batches, name: str, title: str, unit: str, series: Mapping[str, str], *, note: str = "") -> Figure:
    """Bars of the metrics that ``series`` names; one that is 0 throughout is in the table only."""
    points = {told: batches.points(key) for told, key in series.items()}
    drawn = [told for told, of_series in points.items() if any(value for _, value in of_series)]
    values: Values = [
        {"batch": batch, "series": told, "value": value, "order": order}
        for order, told in enumerate(drawn)
        for batch, value in points[told]
    ]
    chart = bar_chart(name, values, unit, order=drawn, bin_size=batches.size, last_batch=batches.last)
    by_batch = {told: dict(of_series) for told, of_series in points.items()}
    steps = sorted({batch for of_series in points.values() for batch, _ in of_series})
    stacked = " From the bottom in the order of the legend." if len(drawn) > 1 else ""
    totals = ", ".join(f"{told} {sum(value for _, value in points[told]):,.4g}" for told in drawn)
    return Figure(
        name,
        title,
        f"{title} by batch, in all: {totals or 'nothing'}.",
        (note + stacked + batches.note).strip(),
        specification(chart) if values else None,
        ("batch", *(f"{told} ({unit})" if len(series) == 1 else told for told in series)),
        [(step, *(by_batch[told].get(step) for told in series)) for step in steps],
    )


def _course(name: str, values: Sequence[Mapping[str, Any]], field: str) -> str:
    """First, last, least and greatest of one series, in words."""
    known = [value[field] for value in values if value["series"] == name]
    if not known:
        return ""
    return f"{name}: from {known[0]:.3g} to {known[-1]:.3g}, between {min(known):.3g} and {max(known):.3g}. "
