"""``doctor`` finds what a run would stumble over, and the probe finds a service that gives no optimizer back."""

import json
import re
import socket
from pathlib import Path

import pytest
from processes import Child, start_command, wait_for
from tinker_runs import outcome, records, run_unseen, service_run
from tinker_server import KEY, Fault, TinkerServer

from orchestrator.doctor.findings import Finding, Level
from orchestrator.doctor.surroundings import check_libraries
from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import CYCLE
from orchestrator.testing import KillAt

ON_ENTERING_BATCH_1 = KillAt("append:after:state_entered", len(CYCLE))
FORGETFUL = Fault("load_weights", "fresh", times=9)


def doctor(folder: Path, *words: str, key: str | None = None) -> tuple[int, dict[str, Finding]]:
    """The exit code, and the last finding of each check; the key is nowhere."""
    environ = {} if key is None else {"TINKER_API_KEY": key}
    code = wait_for(start_command(folder, "doctor", *words, environ=environ))
    told = (folder / "stdout.txt").read_text()
    findings = [re.match(r"(ok|warning|fault) +(\w+) +(.*)", line) for line in told.splitlines()]
    assert all(findings), told
    assert key is None or key not in told + (folder / "stderr.txt").read_text()
    (folder / "stdout.txt").unlink()
    return code, {found[2]: Finding(found[2], Level(found[1]), found[3]) for found in findings if found}


def of(server: TinkerServer) -> tuple[str, ...]:
    """The settings of a run on the server."""
    return (
        "recipe=none",
        "agent=letters:agent",
        "backend=tinker",
        f"base_url={server.url}",
        f"model_name={server.model}",
        "renderer_name=qwen3_instruct",
        "lora_rank=4",
    )


def test_the_embedded_backend_is_well_and_a_port_that_is_held_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        code, found = doctor(tmp_path, f"gateway_port={port}")
    assert code == 2
    assert found["ports"].level is Level.FAULT
    assert f"gateway_port={port} on 127.0.0.1 cannot be had (EADDRINUSE)" in found["ports"].found
    well = {name for name, finding in found.items() if finding.level is Level.OK}
    assert well >= {"python", "disk", "key", "backend", "model", "optimizer"}
    assert "exactly as one that went on" in found["optimizer"].found
    assert list(tmp_path.iterdir()) == [tmp_path / "stderr.txt"]


def test_a_service_is_asked_for_everything_a_run_needs_and_keeps_nothing_of_it(
    tmp_path: Path, service: TinkerServer
) -> None:
    before = service.checkpoints()
    code, found = doctor(tmp_path, *of(service), key=KEY)
    assert code == 0, found
    assert {name: finding.level for name, finding in found.items() if name != "libraries"} == dict.fromkeys(
        ("python", "disk", "ports", "key", "backend", "server", "model", "optimizer"), Level.OK
    )
    assert service.checkpoints() == before
    code, found = doctor(tmp_path, *of(service), key="tml-another-key")
    assert code == 2
    assert "refuses the key (401)" in found["backend"].found
    (tmp_path / "unknown").symlink_to(service.model)
    code, found = doctor(tmp_path, *of(service), "model_name=unknown", "renderer_name=llama3", key=KEY)
    assert code == 2
    assert "unknown is none of its 1 models" in found["server"].found
    assert "renderer_name=llama3: does not work with the tokenizer of unknown" in found["model"].found
    code, found = doctor(tmp_path, *of(service))
    assert (code, found["key"].level) == (2, Level.FAULT)


def test_a_service_that_gives_no_optimizer_back_is_found_and_a_run_that_asks_refuses_to_go_on(
    tmp_path: Path, service: TinkerServer, undisturbed_child: Child
) -> None:
    """The verdict is journaled; without the question, or once the service is mended, the run goes on."""
    before = service.checkpoints()
    service.plan(FORGETFUL)
    code, found = doctor(tmp_path, *of(service), key=KEY)
    assert (code, found["optimizer"].level) == (1, Level.FAULT)
    assert "the optimizer does not come back" in found["optimizer"].found
    assert service.checkpoints() == before
    probing = "probe_optimizer_restore=true"
    assert run_unseen(service_run(tmp_path, service, probing, observer=ON_ENTERING_BATCH_1)) == -9
    child = service_run(tmp_path, service, probing)
    assert run_unseen(child) == 3
    assert "the optimizer does not come back" in child.output
    [record] = records(child, Kind.OPTIMIZER_PROBED)
    assert (record.fields["passed"], record.fields["fresh_difference"]) == (False, 0.0)
    service.plan()
    assert run_unseen(child) == 0, child.output
    probes = records(child, Kind.OPTIMIZER_PROBED)
    assert [record.fields["passed"] for record in probes] == [False, True]
    assert outcome(child, service) == outcome(undisturbed_child, service)


def test_what_a_service_keeps_of_a_run_is_looked_at(tmp_path: Path, service: TinkerServer) -> None:
    """Killed between a save and its record; then its newest checkpoint expires."""
    killed = service_run(tmp_path, service, "save_every=1", observer=KillAt("append:before:checkpoint_saved", 1))
    assert run_unseen(killed) == -9
    journal = (killed.log_path / "journal.jsonl").read_bytes()
    code, found = doctor(tmp_path, str(killed.log_path), key=KEY)
    assert code == 0, found
    assert found["resume"].found.startswith("checkpoint 000000 is there and expires in 168.0 hours")
    assert found["orphans"].level is Level.WARNING
    assert "2 saved under this run's id and not in its journal" in found["orphans"].found
    service.expire(read_journal(killed.log_path).run.checkpoints[0].state_path)
    code, found = doctor(tmp_path, str(killed.log_path), key=KEY)
    assert (code, found["resume"].level) == (2, Level.FAULT)
    assert (killed.log_path / "journal.jsonl").read_bytes() == journal


def test_a_run_on_the_embedded_backend_is_looked_at_and_left_alone(killed: Path) -> None:
    before = {path: path.read_bytes() for path in (killed / "run").rglob("*") if path.is_file()}
    code = wait_for(start_command(killed, "doctor", "run", "--json"))
    findings = {found["check"]: found for found in json.loads((killed / "stdout.txt").read_text())["findings"]}
    assert code == 0, findings
    assert findings["resume"]["found"] == "checkpoint 000000 is there and never expires"
    assert findings["orphans"]["level"] == "ok"
    assert {path: path.read_bytes() for path in (killed / "run").rglob("*") if path.is_file()} == before


def test_wrong_usage_starts_nothing(tmp_path: Path) -> None:
    for words, told in ((("nowhere",), "no run is there"), (("a", "b"), "expected one LOG_PATH"), (("sed=1",), "seed")):
        assert wait_for(start_command(tmp_path, "doctor", *words)) == 2
        assert told in (tmp_path / "stderr.txt").read_text()


def test_libraries_outside_their_ranges_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip writes them down when it installs this program."""
    info = tmp_path / "orchestrator-1.dist-info"
    info.mkdir()
    needed = ("numpy>=1", "tinker>=99", "not-there>=1", 'ray>=99; extra == "ray"')
    head = "Metadata-Version: 2.1\nName: orchestrator\nVersion: 1\n"
    (info / "METADATA").write_text(head + "".join(f"Requires-Dist: {name}\n" for name in needed))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = list(check_libraries())
    assert [finding.level for finding in found] == [Level.FAULT, Level.FAULT, Level.OK]
    assert re.match(r"tinker [\d.]+ is installed, expected >=99", found[0].found)
    assert found[1].found == "not-there is not installed, expected >=1"
    assert found[2].found.startswith("1 packages")
