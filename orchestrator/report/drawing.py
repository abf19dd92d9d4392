"""How a chart is drawn: Altair's marks and encodings. Colours come from the page, which has a light and a dark theme.

Nothing is told by colour alone: lines differ in dash and point, bars stand in the order of their legend, and every
chart has its numbers in a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from orchestrator.errors import OrchestratorError

HEIGHT_PIXELS = 240
ROW_PIXELS = 30
_UPRIGHT = {"strokeDash": [4, 3], "strokeWidth": 1.5}
"""How a kill's line is drawn; it is the only thing of its colour."""
Values = list[dict[str, Any]]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Figure:
    """One chart and its words."""

    name: str
    """Unique on the page; also that of the chart's data."""
    title: str
    alt: str
    """What the chart shows, for who does not see it."""
    note: str
    spec: dict[str, Any] | None
    """Vega-Lite; None: there is nothing to draw yet."""
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def data(name: str, values: Values) -> Any:
    """A chart's data, which the page's scripts can ask for by ``name``."""
    return alt.Data(name=name, values=values)


def batch_axis(field: str = "batch", title: str = "batch") -> Any:
    """Batches from left to right, with whole numbers only."""
    return alt.X(f"{field}:Q", title=title, axis=alt.Axis(format="d", tickMinStep=1), scale=alt.Scale(nice=False))


def line_chart(
    name: str, values: Values, field: str, title: str, *, order: Sequence[str], tooltip: Sequence[str]
) -> Any:
    """A line for each ``series``, told apart by colour, dash and point."""
    legend = alt.Legend(title=None, orient="top") if len(order) > 1 else None
    domain = alt.Scale(domain=list(order))
    return (
        alt.Chart(data(name, values))
        .mark_line(point=alt.OverlayMarkDef(size=36, filled=True), strokeWidth=2)
        .encode(
            x=batch_axis(),
            y=alt.Y(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=True)),
            color=alt.Color("series:N", legend=legend, scale=domain),
            strokeDash=alt.StrokeDash("series:N", legend=legend, scale=domain),
            shape=alt.Shape("series:N", legend=legend, scale=domain),
            tooltip=[alt.Tooltip(f"{name}:{'N' if name == 'series' else 'Q'}") for name in tooltip],
        )
    )


def bar_chart(name: str, values: Values, title: str, *, order: Sequence[str], bin_size: int, last_batch: int) -> Any:
    """Bars of ``value`` by batch, one ``series`` on the other in their order."""
    scale = alt.Scale(nice=False, domain=[-0.5, last_batch + bin_size - 0.5])
    legend = alt.Legend(title=None, orient="top", columns=4, symbolType="square") if len(order) > 1 else None
    return (
        alt.Chart(data(name, values))
        .transform_calculate(left=f"datum.batch - {bin_size} * 0.42", right=f"datum.batch + {bin_size} * 0.42")
        .transform_stack(stack="value", groupby=["batch"], sort=[alt.SortField("order")], as_=["low", "high"])
        .mark_bar()
        .encode(
            x=alt.X("left:Q", title="batch", axis=alt.Axis(format="d", tickMinStep=1), scale=scale),
            x2="right:Q",
            y=alt.Y("low:Q", title=title),
            y2="high:Q",
            color=alt.Color("series:N", legend=legend, scale=alt.Scale(domain=list(order))),
            tooltip=[alt.Tooltip("batch:Q"), alt.Tooltip("series:N"), alt.Tooltip("value:Q")],
        )
    )


def with_kills(chart: Any, kills: Values) -> Any:
    """``chart``, by batch, with an upright line where the run was killed."""
    if not kills:
        return chart
    marks = alt.Chart(data("kills", kills)).encode(x=batch_axis(), tooltip=[alt.Tooltip("label:N", title="event")])
    return alt.layer(marks.mark_rule(**_UPRIGHT), chart)


def stay_chart(name: str, stays: Values, events: Values, *, rows: Sequence[str]) -> Any:
    """States from top to bottom, work time from left to right, and above them what befell the processes."""
    y = alt.Y("row:N", title=None, sort=None, scale=alt.Scale(domain=list(rows)), axis=alt.Axis(labelLimit=130))
    x = alt.X("start:Q", title="seconds of work", scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickMinStep=1))
    bars = (
        alt.Chart(data(name, stays))
        .mark_bar(height=alt.RelativeBandSize(band=0.72))
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=alt.Color(
                "ending:N",
                legend=alt.Legend(title=None, orient="top", symbolType="square"),
                scale=alt.Scale(domain=["left for the next state", "cut off"]),
            ),
            tooltip=[
                alt.Tooltip("batch:Q"),
                alt.Tooltip("row:N", title="state"),
                alt.Tooltip("seconds:Q", format=".3f"),
                alt.Tooltip("how:N", title="it was"),
                alt.Tooltip("process:Q"),
            ],
        )
    )
    told = alt.Chart(data("events", events)).encode(x=x)
    tooltip = [alt.Tooltip("label:N", title="event"), alt.Tooltip("where:N"), alt.Tooltip("process:Q")]
    lines = told.mark_rule(**_UPRIGHT)
    points = told.mark_point(size=90, strokeWidth=2.5).encode(
        y=y,
        shape=alt.Shape(
            "event:N",
            legend=None,  # their rows name them
            scale=alt.Scale(domain=["stop", "resume"], range=["cross", "triangle-right"]),
        ),
        tooltip=tooltip,
    )
    layers = [lines, bars, points] if events else [bars]
    return alt.layer(*layers).resolve_scale(color="independent", shape="independent")


def life_chart(name: str, lives: Values, *, rows: Sequence[str]) -> Any:
    """Names from top to bottom, each with a bar over the batches in which it could be relied on."""
    y = alt.Y("name:N", title=None, sort=None, scale=alt.Scale(domain=list(rows)), axis=alt.Axis(labelLimit=150))
    kinds = ["initial", "periodic", "rolling", "final"]
    base = alt.Chart(data(name, lives)).encode(
        x=batch_axis("saved", "batches trained"),
        y=y,
        color=alt.Color("kind:N", scale=alt.Scale(domain=kinds), legend=None),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("fate:N")],
    )
    ended = [life for life in lives if not life["alive"]]
    end = base.properties(data=data("dropped", ended)).encode(x=batch_axis("dropped", "batches trained"))
    return alt.layer(
        base.mark_bar(height=6, opacity=0.6).encode(x2="dropped:Q"),
        *([end.mark_point(shape="stroke", angle=90, size=220, strokeWidth=2.5)] if ended else []),
        base.mark_point(filled=True, size=90, opacity=1).encode(
            shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds), legend=None)
        ),
    )


def specification(chart: Any, *, height_pixels: int = HEIGHT_PIXELS) -> dict[str, Any]:
    """Vega-Lite of a chart that is as wide as the page lets it be."""
    sized = chart.properties(
        width="container", height=height_pixels, autosize=alt.AutoSizeParams(type="fit", contains="padding")
    )
    spec: dict[str, Any] = sized.to_dict()
    # The theme is the page's: Altair's own would win over it.
    del spec["config"]
    return spec


@cache
def bundle() -> str:
    """The script that draws charts: Vega, Vega-Lite and vega-embed in the versions that Altair writes for, 0.9 MB.

    Raises:
        OrchestratorError: it cannot stand in a page.
    """
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    # Its stub wants the snippet that may be given to have something else bundled.
    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]
    if "</script" in script.lower() or "<!--" in script:
        raise OrchestratorError(
            "vl-convert-python: its script holds what ends a script in a page; install the version that the extra "
            "orchestrator[report] names"
        )
    return script
