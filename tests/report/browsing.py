"""A report in the browser, watched: every request it makes and every word on its console."""

from pathlib import Path
from typing import Any

from orchestrator.cli import main

DESKTOP, PHONE = 1280, 390
"""Widths in pixels."""


def write_report(log_path: Path, output: Path, *options: str) -> Path:
    """The file that the command writes."""
    assert main(["report", str(log_path), "--output", str(output), *options]) == 0
    return output


class Watched:
    """One page, with what it asked for and what it said."""

    def __init__(self, chromium: Any, address: str, *, width: int = DESKTOP, scheme: str = "light") -> None:
        """Opens ``address`` and waits until its charts are drawn; a request for anything else is noted and refused."""
        self.requests: list[str] = []
        self.words: list[str] = []
        self.page = chromium.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.on("console", lambda message: self.words.append(message.text))
        self.page.on("pageerror", lambda error: self.words.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.route("**/*", lambda route: self._decide(route, address))
        self.page.goto(address)
        self.page.evaluate("window.drawn")

    def _dismiss(self, dialog: Any) -> None:
        self.words.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _decide(self, route: Any, address: str) -> None:
        self.requests.append(route.request.url)
        if route.request.url == address:
            route.continue_()
        else:
            route.abort()

    def chart_data(self, chart: str, name: str | None = None) -> list[dict[str, Any]]:
        """What a drawn chart holds, of its own name or of another of its data sets."""
        script = f"document.querySelector('[data-chart={chart}]').view.data({name or chart!r})"
        values: list[dict[str, Any]] = self.page.evaluate(script)
        return values

    def table(self, element_id: str) -> list[list[str]]:
        """The cells of a table's body, as they are shown or would be once unfolded."""
        script = (
            f"[...document.querySelectorAll('#{element_id} tbody tr')]"
            ".map((row) => [...row.cells].map((cell) => cell.textContent))"
        )
        cells: list[list[str]] = self.page.evaluate(script)
        return cells
