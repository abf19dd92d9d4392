"""The checks of ``doctor``, one after the other, each told as soon as it is done."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

import chz

from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, Level
from orchestrator.doctor.runs import check_run
from orchestrator.doctor.services import check_backend, check_key, connect
from orchestrator.doctor.surroundings import check_disk, check_libraries, check_ports, check_python
from orchestrator.journal.lock import RunLock
from orchestrator.journal.recovery import RunState

REPLY_SECONDS = 30.0
"""The longest wait for one answer, and for the probe as a whole: who asks a doctor waits for it."""


def examine(config: Config, run: RunState | None, tell: Callable[[Finding], None]) -> list[Finding]:
    """Every finding, each also told at once; ``run`` is the one in ``config.log_path`` that is asked about.

    The warm start of the built-in model is left out: what it makes is not looked at, and takes long.
    """
    quick = chz.replace(
        config,
        backend_timeout_seconds=min(config.backend_timeout_seconds, REPLY_SECONDS),
        local=chz.replace(config.local, warm_start=None),
    )
    return asyncio.run(_examine(quick, run, tell))


async def _examine(config: Config, run: RunState | None, tell: Callable[[Finding], None]) -> list[Finding]:
    findings: list[Finding] = []

    def note(*found: Finding) -> None:
        for finding in found:
            findings.append(finding)
            tell(finding)

    log_path = Path(config.log_path)
    note(check_python(), *check_libraries(), check_disk(log_path))
    if run is None or RunLock.holder(log_path) is None:  # a run at work holds its own ports
        note(*check_ports(config))
    note(check_key(config))
    if findings[-1].level is Level.FAULT:
        return findings
    with tempfile.TemporaryDirectory() as storage:
        connected, backend = await connect(config, Path(storage))
        note(connected)
        if backend is None:
            return findings
        async for finding in check_backend(config, backend):
            note(finding)
        if run is not None:
            async for finding in check_run(config, log_path, run, backend.service.create_rest_client()):
                note(finding)
    return findings
