"""What `report` does: makes the page and stores it, or serves it while the run goes on."""

import importlib.util
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.journal.durable import write_durably

FILE_NAME = "report.html"
PACKAGES = {"altair": "altair", "vl_convert": "vl-convert-python"}
"""What draws the charts: modules and the packages that they are of, the extra ``report``."""


def check_packages(*, find: Callable[[str], object] = importlib.util.find_spec) -> None:
    """Does nothing where the charts can be drawn; ``find`` gives None for a module that is not installed.

    Raises:
        ConfigError: a package is missing.
    """
    missing = [package for module, package in PACKAGES.items() if find(module) is None]
    if missing:
        raise ConfigError(
            f"report: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed. Install with "
            f"`pip install {' '.join(missing)}` (the extra orchestrator[report] names the versions that work)"
        )


def write_report(log_path: Path, *, output: Path | None, with_prompts: bool) -> Path:
    """Stores the report of the run in ``log_path``, with mode 0600, and returns where.

    Raises:
        ConfigError: no run is there, or a package is missing.
        JournalDamagedError: the journal cannot be trusted.
        JournalWriteError: the file could not be written.
    """
    path = log_path / FILE_NAME if output is None else output
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; give the name of a file")
    page = page_maker(log_path, with_prompts=with_prompts, live=False)
    write_durably(path, page().encode())
    return path


def follow_run(log_path: Path, *, port: int, with_prompts: bool, tell: Callable[[str], None]) -> None:
    """Serves the report until the process is interrupted; ``tell`` is given the address.

    Raises:
        ConfigError: no run is there, a package is missing, or the port cannot be had.
        JournalDamagedError: the journal cannot be trusted.
    """
    from orchestrator.report.live import LivePage, live_server  # needs the packages that are checked first

    page = LivePage(log_path, page_maker(log_path, with_prompts=with_prompts, live=True))
    page.newest()  # what is to be refused is refused here, and not to a browser
    server, address = live_server(page, port=port)
    with server:
        tell(address)
        server.serve_forever()


def page_maker(log_path: Path, *, with_prompts: bool, live: bool) -> Callable[[], str]:
    """What makes the page of the run in ``log_path`` as it is then. Raises ConfigError: a package is missing."""
    check_packages()
    # Start-up time: the charting library takes a second, and may not be installed.
    from orchestrator.report.page import page
    from orchestrator.report.read import read_report

    def make() -> str:
        now = datetime.now(UTC)
        report = read_report(log_path, now=now, with_prompts=with_prompts, judge_at_work=not live)
        return page(report, live=live)

    return make
