"""SkyRL's server, which speaks the service's protocol and was written by others, on a small model of random weights.

It is installed in the environment whose Python SKYRL_PYTHON names: ``make test-skyrl``.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from backends.model_directories import make_llama
from tinker_server import TinkerServer

START_SECONDS = 300.0
OPTIONS = '{"max_lora_adapters":64,"max_lora_rank":8,"sample_max_num_sequences":4,"train_micro_batch_size":1}'
"""Batches of one shape each, because every shape is compiled."""


@dataclass
class SkyRL:
    """The server's processes; what it keeps outlives them."""

    folder: Path
    model: Path
    port: int
    processes: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def server(self) -> TinkerServer:
        """Where it is; it takes no orders from tests."""
        return TinkerServer(f"http://127.0.0.1:{self.port}", self.model)

    def start(self) -> None:
        """Starts it and waits until it takes requests."""
        python = Path(os.environ["SKYRL_PYTHON"])
        environ = {
            **os.environ,
            "VIRTUAL_ENV": str(python.parent.parent),
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "UV_OFFLINE": "1",
            "HF_HUB_OFFLINE": "1",
            "JAX_PLATFORMS": "cpu",
            # Compiling takes most of the time: less of it, and what was compiled is kept over a restart.
            "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
            "JAX_COMPILATION_CACHE_DIR": os.environ.get("SKYRL_CACHE", str(self.folder / "compiled")),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        options = {
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--backend": "jax",
            "--base-model": str(self.model),
            "--backend-config": OPTIONS,
            "--checkpoints-base": str(self.folder / "checkpoints"),
            "--database-url": f"sqlite:///{self.folder / 'tinker.db'}",
        }
        # It reads the command line of `uv run` above it, to start its engine in the same way.
        command = [str(python.parent / "uv"), "run", "--no-project", "--active", "-m", "skyrl.tinker.api"]
        command += [word for option in options.items() for word in option]
        with (self.folder / "skyrl.txt").open("ab") as output:
            self.processes = subprocess.Popen(
                command, stdout=output, stderr=output, env=environ, cwd=self.folder, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.processes.poll() is None, f"it ended: see {self.folder / 'skyrl.txt'}"
            assert time.monotonic() < until, f"it does not come up: see {self.folder / 'skyrl.txt'}"
            time.sleep(0.5)  # another program's start has no event to wait for

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        if self.processes is not None:
            os.killpg(self.processes.pid, signal.SIGKILL)
            self.processes.wait()
            self.processes = None

    def _answers(self) -> bool:
        try:
            with httpx.Client(trust_env=False) as client:
                return client.get(f"{self.server.url}/api/v1/healthz").status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="session")
def skyrl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyRL]:
    """The server, running; a test that kills it starts it again."""
    folder = tmp_path_factory.mktemp("skyrl")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = SkyRL(folder, make_llama(folder / "model"), port)
    server.start()
    yield server
    server.kill()
