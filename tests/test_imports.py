"""The house has floors: a module imports only from floors below its own, or one way within its floor."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = (
    (
        "orchestrator",
        "orchestrator.names",
        "orchestrator.errors",
        "orchestrator.redaction",
        "orchestrator.process",
        "orchestrator.recipes",
    ),
    ("orchestrator.config", "orchestrator.disk", "orchestrator.telling"),
    ("orchestrator.settings", "orchestrator.command", "orchestrator.newproject"),
    ("orchestrator.journal", "orchestrator.backends", "orchestrator.listing", "orchestrator.completion"),
    ("orchestrator.rollouts", "orchestrator.reporting"),
    ("orchestrator.training", "orchestrator.testing"),
    ("orchestrator.context", "orchestrator.verify", "orchestrator.lineage"),
    ("orchestrator.machine", "orchestrator.signals", "orchestrator.repair", "orchestrator.report", "states"),
    ("orchestrator.compose", "orchestrator.preflight", "orchestrator.unbegun"),
    ("orchestrator.admission",),
    ("orchestrator.run",),
    ("orchestrator.chaos", "orchestrator.doctor", "orchestrator.template"),
    ("orchestrator.commands",),
    ("orchestrator.cli",),
    ("orchestrator.__main__",),
)
"""Bottom to top. What stands on one floor does not import its neighbours there, but for modules of its own package."""


def modules() -> dict[str, Path]:
    """Every module of the two packages, by dotted name."""
    found = {}
    for package in ("orchestrator", "states"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(name: str) -> set[str]:
    """The modules of ours that ``name`` imports, anywhere in its file."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {found for found in imported if found in MODULES and found != name}


def room_of(name: str) -> tuple[int, str]:
    """Floor and room of a module: the longest entry of FLOORS that it is, or is in."""
    rooms = [
        (len(room), floor, room)
        for floor, entries in enumerate(FLOORS)
        for room in entries
        if name == room or (room != "orchestrator" and name.startswith(f"{room}."))
    ]
    assert rooms, f"{name} stands on no floor: give it a place in FLOORS"
    _, floor, room = max(rooms)
    return floor, room


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way_down_the_house(name: str) -> None:
    floor, room = room_of(name)
    for imported in imports_of(name):
        other_floor, other_room = room_of(imported)
        assert other_floor < floor or other_room == room, f"{name} (floor {floor}) imports {imported} ({other_floor})"


def test_no_import_cycle() -> None:
    graphlib.TopologicalSorter({name: imports_of(name) for name in MODULES}).prepare()


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("states.")])
def test_states_import_neither_each_other_nor_the_machine(name: str) -> None:
    assert not {other for other in imports_of(name) if other.startswith("states") or other == "orchestrator.machine"}


@pytest.mark.parametrize("name", MODULES)
def test_no_module_hides_an_import_behind_type_checking(name: str) -> None:
    assert "TYPE_CHECKING" not in MODULES[name].read_text()
