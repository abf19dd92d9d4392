"""A report as one HTML page that asks for nothing from anywhere: style, scripts and data are in it.

Tasks, texts and names are other people's: Jinja2 escapes all of them, the data block holds no character that ends it,
and the page's policy runs the two scripts whose hashes it names and nothing else.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from orchestrator import __version__
from orchestrator.redaction import Redactor
from orchestrator.report.charts import figures
from orchestrator.report.drawing import bundle
from orchestrator.report.headline import headline
from orchestrator.report.history import MAX_ROWS
from orchestrator.report.model import Report
from orchestrator.reporting.progress import duration
from orchestrator.reporting.work import work_lost

SECTIONS = (
    ("summary", "Summary"),
    ("learning", "Learning"),
    ("time", "Time and kills"),
    ("outcomes", "Outcomes"),
    ("lineage", "Checkpoints"),
    ("rollouts", "Rollouts"),
    ("configuration", "Configuration"),
    ("verdict", "Verdict"),
    ("story", "Story"),
)


def page(report: Report, *, live: bool = False) -> str:
    """The page of ``report``; a ``live`` one asks its server for news of itself.

    Raises:
        OrchestratorError: the charting library gives what cannot stand in a page.
    """
    redact = Redactor()
    drawn = figures(report)
    run, rollouts = report.run, report.sample.rollouts
    style, script, vega = _asset("report.css"), _asset("report.js"), bundle()
    data = {
        "charts": {name: figure.spec for name, figure in drawn.items() if figure.spec is not None},
        "logprobs": {
            rollout.key: [
                {"logprobs": turn.logprobs, "texts": turn.token_texts and [redact(text) for text in turn.token_texts]}
                for turn in rollout.turns
            ]
            for rollout in rollouts
        },
    }
    template = _environment(redact).get_template("report.html")
    return template.render(
        policy=policy(style, (vega, script), live=live),
        style=Markup(style),  # noqa: S704 - these three are our own files and the library's
        vega=Markup(vega),  # noqa: S704
        script=Markup(script),  # noqa: S704
        data=_data_block(data),
        live=live,
        version=__version__,
        report=report,
        sections=SECTIONS,
        facts=headline(report),
        figures=drawn,
        lost_words=work_lost(report.work),
        process_rows=[
            (
                process.number,
                moment(process.started_at),
                process.took_up,
                duration(process.idle_seconds),
                duration(process.end_seconds - process.start_seconds),
                process.ending,
                process.ended_in,
                process.checkpoint,
                process.error,
            )
            for process in report.processes[-MAX_ROWS:]
        ],
        rollout_groups=[
            (f"Batch {batch}, {'training' if mode == 'train' else 'test'}", list(group))
            for (batch, mode), group in groupby(rollouts, key=lambda each: (each.batch, each.mode))
        ],
        whys=list(dict.fromkeys(each.why for each in rollouts)),
        config_rows=[(name, _value(value)) for name, value in run.config.items()],
        dataset_rows=[(name, part["rows"], part["sha256"]) for name, part in run.dataset.items() if part],
    )


def policy(style: str, scripts: tuple[str, ...], *, live: bool) -> str:
    """The Content-Security-Policy of a page: these texts and no others, and no request but a live page's own."""
    hashes = " ".join(_hash(script) for script in scripts)
    requests = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {hashes}; img-src data:; connect-src {requests}; "
        "base-uri 'none'; form-action 'none'"
    )


def moment(stored_at: str) -> str:
    """A time of the journal as people write it."""
    return f"{stored_at[:10]} {stored_at[11:19]} UTC"


def numeral(value: float) -> str:
    """A number of a table: every digit that it has, so that it is the same as in the files."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value.is_integer() else repr(value)


def _environment(redact: Redactor) -> Environment:
    environment = Environment(
        loader=PackageLoader("orchestrator.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: redact(value) if type(value) is str else value,
    )
    environment.filters |= {"moment": moment, "numeral": numeral}
    return environment


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _data_block(data: Mapping[str, Any]) -> Markup:
    """``data`` as JSON in which nothing can end the element that it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 - has no character that HTML knows


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return files("orchestrator.report").joinpath("templates", name).read_text(encoding="utf-8")
