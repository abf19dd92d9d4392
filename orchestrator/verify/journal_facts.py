"""What the records say beyond being a path of the transition table: each must agree with those before it."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import NoneType
from typing import Any

from orchestrator.config import Config, Drift, field_drifts, flatten
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import RunState
from orchestrator.names import State, batch_name, counted
from orchestrator.verify.evidence import Evidence

DEFAULTS = flatten(Config())
_PLAYED = {"outcomes": (dict,), "sampled_tokens": (int,), "prompt_tokens": (int,)}
_FILE = {"file": (str, NoneType), "sha256": (str, NoneType)}
RESULT_FIELDS: Mapping[State, Mapping[str, tuple[type, ...]]] = {
    State.PUBLISH_MODEL: {"policy_version": (int,), "sampler_path": (str,), "model": (str,), "resources_id": (str,)},
    State.MAYBE_EVALUATE: {"evaluated": (bool,), "reason": (str,), **_PLAYED, **_FILE},
    State.ROLLOUT: {"first_error": (str, NoneType), **_PLAYED, **_FILE},
    State.TRAIN_STEP: {
        "skipped": (bool,),
        "reason": (str, NoneType),
        "optim_steps": (int,),
        "datums": (int,),
        "trained_tokens": (int,),
        "learning_rate": (int, float),
        **_FILE,
    },
    State.SWAP_SAMPLER: {"policy_version": (int,), "sampler_path": (str,), "checkpoint": (str, NoneType)},
    State.LOG: {"step": (int,)},
}
"""What each state's result holds, beside ``metrics``; more may be there."""


def check_journal(evidence: Evidence) -> str:
    """Each record against the fold of those before it, which the reader has found to be a path of the table.

    Raises:
        FaultFoundError: a record says what cannot be.
    """
    run = RunState()
    first: Mapping[str, Any] = {}
    for record in evidence.records:
        problem = next(_problems(record, run, first), None)
        if problem is not None:
            raise evidence.record_fault(record, problem)
        if record.kind is Kind.RUN_STARTED:
            first = record.fields
        run.apply(record)
    counts = {"record": len(evidence.records), "process": run.processes, "transition": sum(1 for _ in evidence.moves())}
    return ", ".join(counted(number, noun) for noun, number in counts.items())


def _problems(record: Record, run: RunState, first: Mapping[str, Any]) -> Iterator[str]:
    """What cannot be about ``record`` after ``run``; ``first`` are the fields of ``run_started``."""
    try:
        datetime.strptime(record.at, "%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: DTZ007 - only its form is looked at
    except ValueError:
        yield f"at is {record.at!r}, expected a time like 2026-11-30T11:02:03.123456Z"
    match record.kind:
        case Kind.RUN_STARTED:
            yield from _start_problems(record.fields)
        case Kind.PROCESS_STOPPED if record.fields["reason"] == "finished" and not run.finished:
            yield "the process says that the run is finished, and it is not"
        case Kind.PROCESS_STARTED:
            yield from _process_problems(record.fields, run, first)
        case Kind.CHECKPOINT_SAVED:
            yield from _saved_problems(record.fields, run)
        case Kind.CHECKPOINT_LOST:
            (live,) = (checkpoint for checkpoint in run.checkpoints if checkpoint.name == record.fields["name"])
            yield from _differences(record.fields, {"batch": live.batch, "state_path": live.state_path})
        case Kind.TRANSITION:
            yield from _result_problems(State(record.fields["source"]), record.fields["result"], run)


def _start_problems(fields: Mapping[str, Any]) -> Iterator[str]:
    fork = fields.get("forked_from")
    if fork is None:  # else the schedule is its parent's
        yield from _differences(fields, {"schedule_batches": fields["num_batches"]})
        return
    for name, length in (("run_id", 32), ("sha256", 64)):
        if not re.fullmatch(rf"[0-9a-f]{{{length}}}", fork[name]):
            yield f"forked_from.{name} is {fork[name]!r}, expected {length} hexadecimal digits"
    for change in fork["changed"]:
        name, new = change["field"], change["new"]
        found = fields["dataset"] if name == "dataset" else fields["config"].get(name)
        if found != new or change["old"] == new:
            yield f"forked_from.changed tells {name}={new!r} (from {change['old']!r}), and the run has {found!r}"


def _differences(found: Mapping[str, Any], expected: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in expected.items():
        if found[name] != value:
            yield f"{prefix}{name} is {found[name]!r}, expected {value!r}"


def _process_problems(fields: Mapping[str, Any], run: RunState, first: Mapping[str, Any]) -> Iterator[str]:
    drifted = {drift["field"]: drift for drift in fields["drift"]}
    if fields["resumed_from"] is None and run.processes == 0:  # the process that started the run
        yield from _differences(fields, {"config": first["config"], "num_batches": first["num_batches"], "drift": []})
    else:
        yield from _differences(fields, {"resumed_from": {"batch": run.batch, "state": run.state.value}})
    # A field that is newer than the record had its default.
    old, new = {**DEFAULTS, **run.config, "dataset": run.dataset}, {**DEFAULTS, **fields["config"]}
    for name, drift in drifted.items():
        if drift["old"] != old.get(name) or (name != "dataset" and drift["new"] != new.get(name)):
            yield f"drift of {name} does not lead from the configuration before to this one"
    for name, drift_class in field_drifts().items():
        if drift_class is Drift.IDENTITY and name not in drifted and old.get(name) != new.get(name):
            yield f"config.{name} is {new.get(name)!r}, expected {old.get(name)!r}: no drift of it was accepted"
    if fields["num_batches"] < run.batch:
        yield f"num_batches is {fields['num_batches']}, but batch {run.batch} is reached"


def _saved_problems(fields: Mapping[str, Any], run: RunState) -> Iterator[str]:
    kind, batch, name = fields["checkpoint_kind"], fields["batch"], fields["name"]
    expected_batch = run.first_batch if kind == "initial" else run.batch + 1
    state = State.PUBLISH_MODEL if kind == "initial" else State.SWAP_SAMPLER
    expected_name = batch_name(batch) if kind in {"initial", "periodic"} else f"{batch_name(batch)}-{kind}"
    yield from _differences(fields, {"batch": expected_batch, "name": expected_name})
    if (run.state, run.entered) != (state, True) or (kind == "initial" and run.batch != run.first_batch):
        yield f"a checkpoint of kind {kind} is saved in {state}, and the run is in {run.state} of batch {run.batch}"
    if not fields["state_path"].endswith(f"/weights/{name}"):
        yield f"state_path is {fields['state_path']!r}, expected one that ends in /weights/{name}"
    sampler_path = fields["sampler_path"]
    if kind == "rolling" and sampler_path is not None:
        yield f"sampler_path is {sampler_path!r}, expected none of a rolling checkpoint"
    if kind != "rolling" and sampler_path != run.sampler_path and not _is_sampler_of(sampler_path or "", batch):
        yield f"sampler_path is {sampler_path!r}, expected that of batch {batch}"
    if run.config["backend"] == "local" and fields["expires_at"] is not None:
        yield f"expires_at is {fields['expires_at']!r}, but what is on the user's own disk never expires"


def _result_problems(state: State, result: Mapping[str, Any], run: RunState) -> Iterator[str]:
    for name, types in {**RESULT_FIELDS.get(state, {}), "metrics": (dict,)}.items():
        # By exact type: a boolean is no number.
        if type(result.get(name, ...)) not in types:
            kinds = " or ".join("null" if kind is NoneType else kind.__name__ for kind in types)
            yield f"result.{name} is {result.get(name)!r}, expected {kinds}"
    yield from _RESULT_PROBLEMS.get(state, _nothing)(result, run)


def _published(result: Mapping[str, Any], run: RunState) -> Iterator[str]:
    yield from _differences(result, {"policy_version": run.batch, "model": run.config["model_name"]}, "result.")
    # Saved again, under the name of this batch, where the backend no longer had it.
    if result["sampler_path"] != run.sampler_path and not _is_sampler_of(result["sampler_path"], run.batch):
        yield f"result.sampler_path is {result['sampler_path']!r}, expected {run.sampler_path or 'that of batch 0'!r}"


def _evaluated(result: Mapping[str, Any], _run: RunState) -> Iterator[str]:
    if not result["evaluated"]:
        nothing = {"outcomes": {}, "sampled_tokens": 0, "prompt_tokens": 0, "file": None, "sha256": None, "metrics": {}}
        yield from _differences(result, nothing, "result.")
    elif result["file"] is None:
        yield "result.file is null, expected the file of the evaluation"


def _swapped(result: Mapping[str, Any], run: RunState) -> Iterator[str]:
    yield from _differences(result, {"policy_version": run.batch + 1}, "result.")
    step = run.batches[run.batch].results[State.TRAIN_STEP]
    if step["skipped"]:
        yield from _differences(result, {"sampler_path": run.sampler_path}, "result.")
    elif not _is_sampler_of(result["sampler_path"], run.batch + 1):
        yield f"result.sampler_path is {result['sampler_path']!r}, expected that of batch {run.batch + 1}"
    saved = {live.name: live.sampler_path for live in run.checkpoints if live.batch == run.batch + 1}
    if result["checkpoint"] is None and saved and run.entries == 1:  # one process, which cannot have saved it unasked
        yield f"result.checkpoint is null, but {', '.join(saved)} was saved in this state"
    if result["checkpoint"] is not None and result["checkpoint"] not in saved:
        yield f"result.checkpoint is {result['checkpoint']!r}, expected one that was saved in this state, or null"
    elif (paired := saved.get(result["checkpoint"])) is not None and paired != result["sampler_path"]:
        yield f"result.sampler_path is {result['sampler_path']!r}, its checkpoint was saved with {paired!r}"


def _logged(result: Mapping[str, Any], run: RunState) -> Iterator[str]:
    yield from _differences(result, {"step": run.batch}, "result.")


def _nothing(_result: Mapping[str, Any], _run: RunState) -> Iterator[str]:
    """The side files say the rest."""
    return iter(())


_RESULT_PROBLEMS: Mapping[State, Callable[[Mapping[str, Any], RunState], Iterator[str]]] = {
    State.PUBLISH_MODEL: _published,
    State.MAYBE_EVALUATE: _evaluated,
    State.ROLLOUT: _nothing,
    State.TRAIN_STEP: _nothing,
    State.SWAP_SAMPLER: _swapped,
    State.LOG: _logged,
}


def _is_sampler_of(path: str, batch: int) -> bool:
    return path.endswith(f"/sampler_weights/{batch_name(batch)}")
