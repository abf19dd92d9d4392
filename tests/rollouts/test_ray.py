"""On a Ray cluster neither a killed node nor a killed run costs anything but time; without one nothing is started."""

import os
import select
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
from placed_runs import kill, stored_rollouts
from processes import AGENTS, Child, fixture_d, run_command, start_child, wait_for

from orchestrator.errors import ConfigError
from orchestrator.rollouts.runners.on_ray import check_reachable, ray_workers
from orchestrator.rollouts.runners.requirements import check_placement
from orchestrator.settings import load_config
from orchestrator.testing import read_ledger

RAY = ("recipe=none", "agent=letters:agent", "placement=ray")


class Cluster:
    """A head without CPUs and two nodes of one each on this machine, from which agents learn their node's number."""

    def __init__(self, folder: Path) -> None:
        import ray.cluster_utils  # for start-up time: most tests need no Ray

        self._own_folder = tempfile.mkdtemp(prefix="ray-")  # the names of Ray's sockets leave little room
        self._shared: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 80_000_000}
        self._environ = {
            "PYTHONPATH": os.pathsep.join(map(str, (AGENTS, AGENTS.parent.parent))),
            "RAY_USAGE_STATS_ENABLED": "0",
            "TEST_FOLDER": str(folder),
        }
        self._cluster = ray.cluster_utils.Cluster()
        self._add(num_cpus=0, temp_dir=self._own_folder)
        self._nodes = [self._add(num_cpus=1, env_vars={"TEST_NODE": str(number)}) for number in range(2)]

    @property
    def address(self) -> str:
        """The head's, as ``HOST:PORT``."""
        return str(self._cluster.address)

    def kill_node(self, number: int) -> None:
        """SIGKILLs what makes a node one, so that its workers end as they do on a machine that is lost."""
        self._cluster.remove_node(self._nodes[number], allow_graceful=False)

    def stop(self) -> None:
        """Ends what still runs."""
        self._cluster.shutdown()
        shutil.rmtree(self._own_folder, ignore_errors=True)

    def _add(self, *, env_vars: dict[str, str] | None = None, **settings: Any) -> Any:
        return self._cluster.add_node(env_vars={**self._environ, **(env_vars or {})}, **self._shared, **settings)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path)
    yield started
    started.stop()


def test_a_killed_node_and_a_killed_run_store_the_same_bytes_and_pay_for_no_turn_twice(
    tmp_path: Path, cluster: Cluster, uninterrupted_child: Child
) -> None:
    """H3: each is killed while one rollout of batch 1 has taken its turns and hangs in its agent."""
    for play in ("first", "second"):
        os.mkfifo(tmp_path / f"{play}.fifo")
    placed = ("placement=ray", f"ray_address={cluster.address}", "num_workers=2", "worker_lost_seconds=5")
    child = fixture_d(tmp_path, "agent=on_nodes:hangs_twice", *placed)
    killed = start_child(child, daemon=False)
    with told_by(tmp_path / "first.fifo") as playing:
        node = int(next_line(playing))
        cluster.kill_node(node)
        assert not next_line(playing)
    with told_by(tmp_path / "second.fifo") as playing:
        assert int(next_line(playing)) == 1 - node
        kill(killed)
        assert not next_line(playing), "the workers of a run end with it"
    assert "a worker was lost" in child.output
    assert wait_for(start_child(child, daemon=False)) == 0, child.output
    assert stored_rollouts(child) == stored_rollouts(uninterrupted_child)
    calls = [
        len([line for line in read_ledger(run.ledger) if line["request"] == "sample"])
        for run in (child, uninterrupted_child)
    ]
    assert calls[0] <= calls[1] + 2, "only a turn that is in flight at a kill is paid for twice"


def told_by(fifo: Path) -> TextIO:
    """What is written there, also where nobody has opened it yet."""
    return os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))


def next_line(told: TextIO, *, timeout_seconds: float = 120.0) -> str:
    """The next line, or nothing once the process that writes there has ended."""
    readable, _, _ = select.select([told], [], [], timeout_seconds)
    assert readable, f"nothing was told within {timeout_seconds:g} s"
    return told.readline()


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ((), "ray_address=none: placement=ray needs a cluster"),
        (("ray_address=ray://head:10001",), "ray:// is for programs outside"),
        (("ray_address=local",), "ray_address=local: placement=ray needs a cluster"),
    ],
)
def test_an_address_that_is_no_clusters_is_refused(address: tuple[str, ...], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_config([*RAY, *address])


def test_a_cluster_of_several_machines_needs_addresses_that_they_can_call() -> None:
    machines, reachable = ("10.0.0.5", "10.0.0.6"), ("store_host=10.0.0.5", "gateway_host=10.0.0.5")
    here = ray_workers(load_config([*RAY, "ray_address=auto"]))
    check_reachable(here, machines[:1])
    with pytest.raises(ConfigError, match=r"^store_host and gateway_host: the cluster has 2 machines"):
        check_reachable(here, machines)
    check_reachable(ray_workers(load_config([*RAY, "ray_address=auto", *reachable])), machines)


def test_without_the_package_the_refusal_names_the_extra() -> None:
    config = load_config([*RAY, "ray_address=auto"])
    with pytest.raises(ConfigError, match=r"orchestrator\[ray\]"):
        check_placement(config, find=lambda _name: None)


def test_a_cluster_that_does_not_answer_is_a_usage_error_and_starts_nothing(tmp_path: Path) -> None:
    """H15."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    code, _, stderr = run_command(tmp_path, "run", *RAY, f"ray_address={address}", "log_path=run")
    assert code == 2
    assert f"ray_address={address}: nothing answers there" in stderr
    assert not (tmp_path / "run").exists()
