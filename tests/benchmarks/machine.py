"""What machine, libraries and commit a set of figures belongs to."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("agentlightning", "litellm", "tinker", "tinker-cookbook", "torch", "transformers", "uvicorn")


def machine_facts() -> dict[str, object]:
    """Plain JSON values; no host name, user or path."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
        "commit": _commit(),
    }


def _processor() -> str:
    """The model's name where the system tells it."""
    told = Path("/proc/cpuinfo")
    if told.exists():
        for line in told.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _commit() -> str:
    """With a plus where files differ from it; empty: this is no checkout."""
    here = Path(__file__).parent
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"], cwd=here, capture_output=True, text=True
    )
    return told.stdout.strip()
