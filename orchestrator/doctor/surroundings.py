"""What a run finds on its machine: Python, the libraries, a disk that keeps what it is given, and free ports."""

import errno
import importlib.metadata
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from orchestrator.config import Config
from orchestrator.doctor.findings import Finding, fault, ok, warning

DISTRIBUTION = "orchestrator"
LEAST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 1_000_000_000
SLOW_SYNC_SECONDS = 0.1
"""A record is synced some twenty times a batch, and every rollout and turn once."""


def check_python() -> Finding:
    """The interpreter that runs this."""
    found = f"Python {platform.python_version()}"
    if sys.version_info < LEAST_PYTHON:
        return fault("python", found, f"Use Python {'.'.join(map(str, LEAST_PYTHON))} or newer")
    return ok("python", found)


def check_libraries() -> Iterator[Finding]:
    """The installed versions against the ranges that this program was installed with; a line for all that fit."""
    try:
        required = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]
    except importlib.metadata.PackageNotFoundError:
        yield warning(
            "libraries",
            "this program is not installed, so its ranges of versions are not known",
            "Install it: python -m pip install -c constraints.txt -e .",
        )
        return
    fitting = 0
    for requirement in required:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        problem = _problem_with(requirement)
        if problem is None:
            fitting += 1
        else:
            yield fault("libraries", problem, "Install what constraints.txt names: pip install -c constraints.txt -e .")
    yield ok("libraries", f"{fitting} packages are of the versions that this program is made for")


def _problem_with(requirement: Requirement) -> str | None:
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed, expected {requirement.specifier}"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} is installed, expected {requirement.specifier}"


def check_disk(log_path: Path) -> Finding:
    """Where the run directory is or would be: a file is written, synced and removed beside it, never in it."""
    folder = next(path for path in (log_path.absolute().parent, *log_path.absolute().parents) if path.is_dir())
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".orchestrator-doctor-") as file:
            file.write(b"doctor")
            file.flush()
            began = time.monotonic()
            os.fsync(file.fileno())
            seconds = time.monotonic() - began
        free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "error")
        return fault("disk", f"{folder} takes no file ({name})", "Give a log_path on a disk that can be written to")
    found = f"{folder}: a sync takes {1000 * seconds:.1f} ms, {free_bytes / 1e9:,.1f} GB free"
    if free_bytes < LEAST_FREE_BYTES:
        return warning("disk", found, "A run stops, resumable, when the disk is full: make room")
    if seconds > SLOW_SYNC_SECONDS:
        return warning("disk", found, "Every record, rollout and turn is synced: a local disk is faster")
    return ok("disk", found)


def check_ports(config: Config) -> Iterator[Finding]:
    """The ports that the configuration names, which somebody else may hold; 0 is any free one."""
    ports: Mapping[str, tuple[str, int]] = {
        "gateway_port": (config.gateway_host, config.gateway_port),
        "store_port": (config.store_host, config.store_port),
    }
    for field, (host, port) in ports.items():
        if port == 0:
            continue
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "error")
            yield fault("ports", f"{field}={port} on {host} cannot be had ({name})", "Free it, or give another port")
        else:
            yield ok("ports", f"{field}={port} on {host} is free")
    if not any(port for _, port in ports.values()):
        yield ok("ports", "none is named: any free ones are taken")
