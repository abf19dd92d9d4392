"""Traces and charts of where a run's time goes: made by tinker-cookbook's tracing, on request, and without effect."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import fixture_d, run_child
from tinker_cookbook.utils import trace

from orchestrator.names import CYCLE
from orchestrator.reporting.spans import CHART_FILE, TRACE_FILE
from orchestrator.testing import KillAt, outcome_of_run


def test_a_killed_runs_trace_is_whole_and_goes_on_and_the_run_is_the_same(
    tmp_path: Path, uninterrupted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when it enters TrainStep of batch 1, with a line of the trace half written."""
    log_path = tmp_path / "run"
    killed = fixture_d(tmp_path, "enable_trace=true", observer=KillAt("append:after:state_entered", len(CYCLE) + 3))
    assert run_child(killed) == -9
    file = log_path / TRACE_FILE
    with file.open("a") as stream:
        stream.write('{"name": "TrainSt')
    assert run_child(fixture_d(tmp_path, "enable_trace=true")) == 0
    assert outcome_of_run(log_path) == uninterrupted
    assert file.stat().st_mode & 0o777 == 0o600

    # The cookbook's own converter, as its users call it.
    monkeypatch.setattr("sys.argv", ["trace.py", str(file), str(tmp_path / "trace.json")])
    trace.convert_jsonl_to_json_main()
    events = json.loads((tmp_path / "trace.json").read_text())
    ended = Counter(event["name"] for event in events if event["ph"] == "E")
    # The kill may lose what the first process had not written yet; the second one wrote all of its own.
    assert all(ended[state.value] >= 2 for state in CYCLE if state.value != "PublishModel")
    assert ended["train_step"] >= 2
    assert {event["args"]["track"] for event in events if event["name"] in {state.value for state in CYCLE}} == {
        "states"
    }


def test_nothing_is_traced_unless_it_is_asked_for(uninterrupted_child: Any) -> None:
    assert not (uninterrupted_child.log_path / TRACE_FILE).exists()
    assert not list(uninterrupted_child.log_path.glob("iteration_*"))


def test_every_second_batch_has_a_chart_of_its_states(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    pytest.importorskip("plotly", reason="the extra orchestrator[plotly] is not installed")
    child = fixture_d(tmp_path, "span_chart_every=2")
    assert run_child(child) == 0, child.output
    assert outcome_of_run(child.log_path) == uninterrupted
    charts = sorted(path.relative_to(child.log_path) for path in child.log_path.glob("iteration_*/*"))
    assert charts == [Path(f"iteration_{batch:06d}", CHART_FILE) for batch in (0, 2)]
    page = (child.log_path / charts[0]).read_text()
    assert all(f'"{name}"' in page for name in (*(state.value for state in CYCLE), "train_step"))
