"""``make bench``: one table of what the machine costs, each row a ratio measured side by side, and the same as JSON.

``PYTHONPATH=tests python -m benchmarks [GROUP ...] [--json FILE]``, on a machine with nothing else to do, in under ten
minutes on two cores. Where ``baseline.json`` exists the figures are compared with it.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.children import MeasurementError
from benchmarks.machine import machine_facts
from benchmarks.rows import Row

from orchestrator.process import importing

GROUPS = {
    "gateway": "calls through our gateway against Agent-lightning's LLMProxy",
    "swap": "publish and swap against a proxy restart",
    "rollout_state": "the Rollout state against polls each 5 s",
    "whole_runs": "whole runs against tinker-cookbook's loop and the reference's way of working",
    "overhead": "what the orchestrator adds to a batch",
    "journal": "append, fold and status of the journal",
    "resume": "a killed run to its first useful call",
    "commands": "help, start, and the memory of a default run",
    "memory": "growth of memory over 200 batches",
    "embedded": "the embedded backend against transformers and plain PyTorch",
    "growth": "the cost of each state at 1, 4 and 16 times the rollouts",
}
BASELINE = Path(__file__).with_name("baseline.json")


def main() -> int:
    """Measures, prints and writes; 1 where a measurement failed, whether goals are met or not."""
    options = _options()
    found: dict[str, list[Row]] = {}
    baseline = _baseline()
    failed = False
    began = time.perf_counter()
    print(_heading(bool(baseline)), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path)
        for group in options.groups or GROUPS:
            place = Path(folder) / group
            place.mkdir()
            try:
                # Here, in the parent of all measurements: each forks with what it needs imported.
                with importing():
                    module = importlib.import_module(f"benchmarks.{group}")
                found[group] = module.measure(place)
            except MeasurementError as error:
                failed = True
                print(f"{group}: {error}", file=sys.stderr, flush=True)
                continue
            for row in found[group]:
                print(_line(row, baseline), flush=True)
    rows = [row for group in found.values() for row in group]
    missed = [row.name for row in rows if not row.met]
    print(f"{len(rows) - len(missed)} of {len(rows)} goals met, in {time.perf_counter() - began:.0f} s")
    for row in rows:
        if row.note:
            print(f"  {row.name}: {row.note}")
    if options.json is not None:
        report = {"machine": machine_facts(), "rows": {row.name: row.to_json() for row in rows}}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(failed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="What the machine costs, each row measured side by side.",
        epilog="groups:\n" + "\n".join(f"  {name:<14}{told}" for name, told in GROUPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="which to measure; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    unknown = set(options.groups) - set(GROUPS)
    if unknown:
        parser.error(f"{' '.join(sorted(unknown))}: expected some of {' '.join(GROUPS)}")
    return options


def _baseline() -> dict[str, Any]:
    """The committed rows by name; empty: there are none."""
    if not BASELINE.exists():
        return {}
    rows: dict[str, Any] = json.loads(BASELINE.read_text())["rows"]
    return rows


def _heading(compared: bool) -> str:
    columns = f"{'row':<28}{'ours':>12}{'theirs':>12} {'unit':<9}{'ratio':>8}  {'goal':<20}{'':<8}{'rounds':>6}"
    return columns + ("    baseline" if compared else "")


def _line(row: Row, baseline: dict[str, Any]) -> str:
    theirs = "" if row.theirs is None else _figure(row.theirs)
    ratio = "" if row.ratio is None else f"{row.ratio:.3g}x"
    met = "" if not row.goal else "met" if row.met else "MISSED"
    line = f"{row.name:<28}{_figure(row.ours):>12}{theirs:>12} {row.unit:<9}{ratio:>8}  {row.goal:<20}{met:<8}"
    line += f"{row.rounds:>6}"
    before = baseline.get(row.name)
    if before is None:
        return line
    if row.ratio is None or before["ratio"] is None:
        return f"{line}    {_figure(before['ours'])} {before['unit']}"
    return f"{line}    {before['ratio']:.3g}x"


def _figure(value: float) -> str:
    """Three digits, and no more before the point than there are."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
