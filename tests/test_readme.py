"""What the README says of the machine is what the table says."""

from pathlib import Path

from orchestrator.reporting.diagram import mermaid

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_readmes_diagram_is_drawn_from_the_table() -> None:
    assert f"```mermaid\n{mermaid()}\n```" in README


def test_the_readme_is_one_sitting() -> None:
    assert len(README.splitlines()) <= 320
