"""The weights a run relies on: its live checkpoints and its current sampler are there, undamaged, and its own."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.local.checkpoints import CheckpointStore, Metadata
from orchestrator.backends.local.model import fingerprint
from orchestrator.backends.local.service import BASE
from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.backends.surface import RestClient
from orchestrator.config import TINY
from orchestrator.errors import BackendError, FaultFoundError
from orchestrator.journal.log import JOURNAL_NAME, read_journal
from orchestrator.journal.records import Kind
from orchestrator.names import State, batch_name
from orchestrator.training.checkpoints import JOURNAL_SEQ
from orchestrator.verify.evidence import Evidence

RESUME = "A resume takes an older checkpoint, or saves the sampler again, from the stored datums"
CURE = f"Restore it from a copy. {RESUME}"
BASE_CURE = "Restore it from a copy, or give the model that the run was started with"
REPLY_SECONDS = 60.0
"""The longest wait for one answer of the service."""


@dataclass(frozen=True, slots=True)
class Needed:
    """Something saved that the journal relies on."""

    path: str
    restores: bool
    """Whether it is a checkpoint, with the optimizer; else it is a sampler."""
    expires_at: datetime | None
    """When the service may delete it; None: never."""

    @property
    def batch(self) -> str:
        """Batches trained, which every name begins with."""
        return str(int(self.path.rpartition("/")[2][: len(batch_name(0))]))


def check_checkpoints(evidence: Evidence) -> str:
    """What is saved on the embedded backend, or on the service where a key is set.

    Raises:
        FaultFoundError: something that a resume relies on is missing, damaged or another run's.
    """
    needed = list(_needed(evidence))
    if evidence.run.config["backend"] == "local":
        for saved in needed:
            _check_local(evidence, saved)
        return f"{len(needed)} checkpoints and samplers, {_check_base(evidence, needed)}"
    if not os.environ.get("TINKER_API_KEY"):
        return f"{len(needed)} checkpoints and samplers not checked: TINKER_API_KEY is not set"
    rest_client = tinker.ServiceClient(base_url=evidence.run.config["base_url"]).create_rest_client()
    try:
        return asyncio.run(check_service(evidence, rest_client))
    except (tinker.TinkerError, BackendError) as error:
        return f"{len(needed)} checkpoints and samplers not checked: the service fails with {type(error).__name__}"


async def check_service(evidence: Evidence, rest_client: RestClient) -> str:
    """What the service keeps and has not said it would delete by now.

    Raises:
        FaultFoundError: something that a resume relies on is missing.
        BackendError: the service did not answer.
    """
    needed = list(_needed(evidence))
    living = [saved for saved in needed if saved.expires_at is None or saved.expires_at > datetime.now(UTC)]
    for saved in living:
        try:
            request = rest_client.get_weights_info_by_tinker_path(saved.path)
            await reply_within(REPLY_SECONDS, request, f"looking for {saved.path}")
        except tinker.NotFoundError as error:
            if _still_needed(evidence, saved.path):
                journal = evidence.log_path / JOURNAL_NAME
                problem = f"the service no longer has {saved.path}, which the journal relies on"
                raise FaultFoundError(journal, problem=problem, cure=RESUME) from error
    return f"{len(living)} checkpoints and samplers, {len(needed) - len(living)} more have expired"


def _needed(evidence: Evidence) -> Iterator[Needed]:
    run = evidence.run
    samplers = {} if run.sampler_path is None else {run.sampler_path: _sampler_expiry(evidence, run.sampler_path)}
    for live in run.checkpoints:
        # Deleted before the journal says so, which a kill may come between, and never restored from again.
        if live.checkpoint_kind == "rolling" and any(newer.batch > live.batch for newer in run.checkpoints):
            continue
        expires_at = None if live.expires_at is None else datetime.fromisoformat(live.expires_at)
        yield Needed(live.state_path, True, expires_at)
        if live.sampler_path is not None:
            samplers[live.sampler_path] = expires_at
    for path, expires_at in samplers.items():
        yield Needed(path, False, expires_at)


def _sampler_expiry(evidence: Evidence, path: str) -> datetime | None:
    saved = next(move for move in evidence.moves() if move.result.get("sampler_path") == path)
    ttl_seconds = saved.config["ttl_seconds"]
    saved_at = datetime.fromisoformat(saved.record.at)
    return None if ttl_seconds is None else saved_at + timedelta(seconds=ttl_seconds)


def _check_local(evidence: Evidence, saved: Needed) -> None:
    directory = _directory(evidence, saved.path)
    try:
        checkpoint = CheckpointStore(evidence.log_path / LOCAL_DIRECTORY, clear=False).find(saved.path)
        if saved.restores:
            checkpoint.optimizer_state()
        problem = _foreign(evidence, checkpoint.metadata, saved)
    except tinker.APIStatusError as error:
        problem = error.message
    if problem is not None and _still_needed(evidence, saved.path):
        raise FaultFoundError(directory, problem=problem, cure=CURE)


def _foreign(evidence: Evidence, metadata: Metadata, saved: Needed) -> str | None:
    """Why it cannot be what this run saved."""
    config, adapter = evidence.run.config, metadata.adapter
    found = {
        **metadata.user_metadata,
        "expires_at": metadata.expires_at,
        "model_name": metadata.base_model,
        "lora_rank": adapter.rank,
        "adapted layers": (adapter.train_mlp, adapter.train_attn, adapter.train_unembed),
    }
    expected = {"orchestrator_run_id": evidence.run.run_id, "batch": saved.batch, "expires_at": None}
    if config["load_checkpoint_path"] is None:  # else these are as they were there
        expected |= {name: config[name] for name in ("model_name", "lora_rank")} | {
            "adapted layers": (True, True, True)
        }
    for name, value in expected.items():
        if found.get(name) != value and name not in evidence.drifted():
            return f"its metadata has {name}={found.get(name)!r}, expected {value!r}"
    seq = found.get(JOURNAL_SEQ)  # a save of an older version has none
    if seq is not None and not _may_follow(evidence, str(seq), saved):
        return f"its metadata has {JOURNAL_SEQ}={seq!r}, expected that of a record which it can have been saved after"
    return None


def _may_follow(evidence: Evidence, seq: str, saved: Needed) -> bool:
    """Whether it can have been saved while the record of that seq was the newest."""
    if not seq.isdecimal() or int(seq) >= len(evidence.records):
        return False
    newest = evidence.records[int(seq)]
    entered = (record for record in evidence.records[int(seq) :: -1] if record.kind is Kind.STATE_ENTERED)
    fields = next(entered, newest).fields
    batch = int(saved.batch)
    return newest.kind in {Kind.STATE_ENTERED, Kind.CHECKPOINT_LOST} and (fields["batch"], fields["state"]) in {
        (batch - 1, State.SWAP_SAMPLER),
        *((batch, state) for state in (State.PUBLISH_MODEL, State.MAYBE_EVALUATE, State.ROLLOUT)),
    }


def _check_base(evidence: Evidence, needed: list[Needed]) -> str:
    """The base model that the local checkpoints were trained from."""
    name = evidence.run.config["model_name"]
    directory = evidence.log_path / LOCAL_DIRECTORY / BASE / TINY if name == TINY else Path(name)
    if not needed or "model_name" in evidence.drifted():
        return "base model not checked: none is needed yet, or it was changed on the way"
    if name != TINY and not directory.is_dir():
        return f"base model not checked: {name} is no directory from here"
    try:
        found = fingerprint(directory)
    except (OSError, ValueError) as error:
        raise FaultFoundError(directory, problem=f"the base model cannot be read: {error}", cure=BASE_CURE) from error
    store = CheckpointStore(evidence.log_path / LOCAL_DIRECTORY, clear=False)
    trained_from = {saved.path: _fingerprint_of(store, saved.path) for saved in needed}
    for path, expected in trained_from.items():
        if expected in {found, None}:
            continue
        others = [other for other in trained_from.values() if other not in {expected, None}]
        if found in others:
            problem = f"its metadata has base_fingerprint={expected!r}, expected {found!r}"
            raise FaultFoundError(_directory(evidence, path), problem=problem, cure=CURE)
        problem = f"the base model has the fingerprint {found}, {path} was trained from {expected}"
        raise FaultFoundError(directory, problem=problem, cure=BASE_CURE)
    return f"base model {found}"


def _fingerprint_of(store: CheckpointStore, path: str) -> str | None:
    try:
        return store.find(path).metadata.base_fingerprint
    except tinker.NotFoundError:  # deleted since it was checked, by a run at work
        return None


def _still_needed(evidence: Evidence, path: str) -> bool:
    """A run at work may have gone on meanwhile, and deleted what it no longer needs."""
    run = read_journal(evidence.log_path).run
    live = {saved for checkpoint in run.checkpoints for saved in (checkpoint.state_path, checkpoint.sampler_path)}
    return path == run.sampler_path or path in live


def _directory(evidence: Evidence, path: str) -> Path:
    """Where the embedded backend keeps what is saved under ``path``."""
    return evidence.log_path / LOCAL_DIRECTORY / path.removeprefix("local://")
