"""The checkpoint ledger at a Tinker service: whose a save is, what nobody knows of, and what would expire too soon."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Child, fixture_d, run_child
from tinker_cookbook.checkpoint_utils import get_last_checkpoint
from tinker_runs import attempts, final_path, lineage, log_lines, records, run_unseen, service_run
from tinker_server import KEY, Fault, TinkerServer

from orchestrator.journal.log import read_journal
from orchestrator.journal.records import Kind
from orchestrator.journal.recovery import BatchFacts, Checkpoint, RunState
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt
from orchestrator.training.expiry import expires_too_soon, expires_within_a_batch, pace

NOW = datetime(2026, 12, 1, tzinfo=UTC)


def listed(server: TinkerServer) -> list[dict[str, Any]]:
    """What the service lists."""
    with httpx.Client(trust_env=False, headers={"x-api-key": KEY}) as client:
        reply = client.get(f"{server.url}/api/v1/checkpoints", params={"limit": 1000, "offset": 0})
    found: list[dict[str, Any]] = reply.raise_for_status().json()["checkpoints"]
    return found


def orphans(child: Child) -> list[list[str]]:
    """What was told of them at each start."""
    lines = (child.log_path / "log.jsonl").read_text().splitlines()
    return [line["paths"] for line in map(json.loads, lines) if line["event"].startswith("orphaned checkpoints: ")]


def test_every_save_says_whose_it_is_and_after_which_record(undisturbed_child: Child, service: TinkerServer) -> None:
    reading = read_journal(undisturbed_child.log_path)
    saved = [save for save in listed(service) if save["user_metadata"].get("orchestrator_run_id") == reading.run.run_id]
    live = {checkpoint.state_path for checkpoint in reading.run.checkpoints}
    assert live <= {save["tinker_path"] for save in saved}
    for save in saved:
        record = reading.records[int(save["user_metadata"]["journal_seq"])]
        batch = int(save["user_metadata"]["batch"])
        assert record.kind is Kind.STATE_ENTERED
        assert (record.fields["batch"], record.fields["state"]) == (
            (0, State.PUBLISH_MODEL) if batch == 0 else (batch - 1, State.SWAP_SAMPLER)
        )


def test_what_a_killed_process_saved_and_did_not_record_is_told_at_the_next_start(
    tmp_path: Path, service: TinkerServer
) -> None:
    """Sampler and state of batch 0 are saved. A service gives each process names of its own: they are not adopted."""
    killed = service_run(tmp_path, service, "save_every=1", observer=KillAt("append:before:checkpoint_saved", 1))
    assert run_unseen(killed) == -9
    owner = read_journal(killed.log_path).run.checkpoints[0].state_path.rpartition("/weights/")[0]
    unknown = sorted([f"{owner}/sampler_weights/000001", f"{owner}/weights/000001"])
    child = service_run(tmp_path, service, "save_every=1")
    assert run_unseen(child) == 0, child.output
    assert [sorted(paths) for paths in orphans(child)] == [unknown]
    assert "orphaned checkpoints: 2 saved under this run's id and not in its journal, " in child.output
    assert set(unknown) <= set(service.checkpoints()), "nothing is deleted that the user was not asked about"


def test_an_undisturbed_run_leaves_no_orphan_and_the_embedded_backend_adopts_its_own(
    tmp_path: Path, service: TinkerServer
) -> None:
    """The first is taken up again only to be extended."""
    child = service_run(tmp_path / "service", service, "rolling_save_every=1", "max_batches=2")
    assert run_unseen(child) == 0
    assert run_unseen(service_run(tmp_path / "service", service, "rolling_save_every=1")) == 0, child.output
    assert orphans(child) == []
    embedded = fixture_d(tmp_path, "save_every=1", observer=KillAt("append:before:checkpoint_saved", 1))
    assert run_child(embedded) == -9
    assert run_child(fixture_d(tmp_path, "save_every=1")) == 0
    assert orphans(embedded) == []


def test_a_service_that_does_not_list_costs_a_line_and_nothing_else(tmp_path: Path, service: TinkerServer) -> None:
    killed = service_run(tmp_path, service, observer=KillAt("append:after:state_entered", len(CYCLE)))
    assert run_unseen(killed) == -9
    service.plan(Fault("list_checkpoints", "answer", status=404))
    child = service_run(tmp_path, service)
    assert run_unseen(child) == 0, child.output
    assert len(log_lines(child, "the backend does not list its checkpoints: orphans are not looked for")) == 1


def test_a_checkpoint_that_would_expire_before_the_next_save_is_renewed_by_an_early_one(
    tmp_path: Path, service: TinkerServer
) -> None:
    """The first lives for a second, which a batch is a good part of; the next save is due after five more."""
    settings = ("n_epochs=2", "rolling_save_every=0", "ttl_seconds=1", "rolling_ttl_seconds=3600")
    killed = service_run(tmp_path, service, *settings, observer=KillAt("append:after:state_entered", 4 * len(CYCLE)))
    assert run_unseen(killed) == -9
    saved = [record.fields["name"] for record in records(killed, Kind.CHECKPOINT_SAVED)]
    assert saved == ["000000", "000001-rolling"]
    assert len(log_lines(killed, "the newest checkpoint expires before the next is due: saved early")) == 1
    child = service_run(tmp_path, service, *settings)
    assert run_unseen(child) == 0, child.output
    assert [line["redone_batch"] for line in log_lines(child, "redoing a stored train step")] == [1, 2, 3]
    assert lineage(service, final_path(child)).count("optim_step") == 6
    assert [record.fields["name"] for record in records(child, Kind.CHECKPOINT_SAVED)] == [*saved, "000006-final"]


def test_a_resume_restores_at_once_from_what_expires_soon(tmp_path: Path, service: TinkerServer) -> None:
    """Else it would be gone by the time that the rollouts are played; from what lives on, TrainStep restores."""
    for ttl_seconds, expected in ((1_800, ["load_weights", "asample"]), (604_800, ["asample", "load_weights"])):
        settings = (f"ttl_seconds={ttl_seconds}", "save_every=1")
        in_rollout = KillAt("append:after:state_entered", len(CYCLE) + CYCLE.index(State.ROLLOUT))
        folder = tmp_path / str(ttl_seconds)
        assert run_unseen(service_run(folder, service, *settings, observer=in_rollout)) == -9
        service.forget()
        child = service_run(folder, service, *settings)
        assert run_unseen(child) == 0, child.output
        asked = [attempt["request"] for attempt in attempts(service, "load_weights", "asample")]
        assert list(dict.fromkeys(asked)) == expected
        assert ("expires soon: it is restored now" in child.output) == (ttl_seconds == 1_800)


def run_with(*, batch_seconds: float, left: timedelta | None) -> RunState:
    """A run of five whole batches, whose newest checkpoint lives for ``left`` from NOW."""
    expires_at = None if left is None else (NOW + left).isoformat()
    newest = Checkpoint(4, "000004", "periodic", "tinker://a/weights/000004", None, expires_at)
    older = Checkpoint(0, "000000", "initial", "tinker://a/weights/000000", None, (NOW - timedelta(days=1)).isoformat())
    batches = {batch: BatchFacts(seconds={State.ROLLOUT: batch_seconds - 1, State.LOG: 1.0}) for batch in range(5)}
    return RunState(batch=5, batches=batches, checkpoints=[older, newest])


@pytest.mark.parametrize(
    ("batch_seconds", "left", "to_next_save", "renewed"),
    [
        (3600, None, 100, False),  # it never expires
        (3600, timedelta(hours=23), 20, False),  # the next save comes first
        (3600, timedelta(hours=18), 20, False),  # it does not, but there is time
        (3600, timedelta(hours=11), 20, True),  # half of the lifetime is over
        (36_000, timedelta(hours=19), 1, True),  # the end of the next batch may be too late
        (60, timedelta(hours=2), 1000, True),
        (60, timedelta(hours=2), 10, False),
        (60, timedelta(hours=-1), 10, True),  # expired already
    ],
)
def test_a_save_is_renewed_only_where_waiting_would_leave_nothing_to_resume_from(
    batch_seconds: float, left: timedelta | None, to_next_save: int, renewed: bool
) -> None:
    """Saves live for a day."""
    run = run_with(batch_seconds=batch_seconds, left=left)
    assert pace(run) == timedelta(seconds=batch_seconds)
    needed = expires_too_soon(run, batches_to_next_save=to_next_save, lifetime_seconds=86_400, now=NOW)
    assert needed is renewed


def test_a_resume_from_what_is_about_to_expire_says_so() -> None:
    for hours, told in ((3, False), (1.5, True), (-1, True)):
        run = run_with(batch_seconds=3600, left=timedelta(hours=hours))
        assert expires_within_a_batch(run, run.checkpoints[-1], now=NOW) is told


def test_the_view_of_checkpoints_is_what_the_cookbooks_own_reader_takes(undisturbed_child: Child, killed: Path) -> None:
    """Of a finished run the final one, of a killed one the newest."""
    final = get_last_checkpoint(str(undisturbed_child.log_path))
    assert final is not None
    assert (final.name, final.batch, final.final) == ("000003-final", 3, True)
    assert (final.state_path, final.extra) == (final_path(undisturbed_child), {})
    sampler = get_last_checkpoint(str(undisturbed_child.log_path), required_key="sampler_path")
    assert sampler == final
    newest = get_last_checkpoint(str(killed / "run"))
    assert newest is not None
    assert (newest.name, newest.batch, newest.final) == ("000000", 0, None)
    assert json.loads((killed / "run" / "config.json").read_bytes())["model_name"] == "tiny"
