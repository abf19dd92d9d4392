"""The journal for people: one line a record."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.journal.log import JOURNAL_NAME, read_journal
from orchestrator.journal.records import Kind, Record
from orchestrator.names import State, counted

FOLLOW_SECONDS = 0.5
"""How often a followed journal is looked at."""


def story_line(record: Record) -> str:
    """When, where and what happened, in one line."""
    place = f"batch {record.fields['batch']}" if "batch" in record.fields else ""
    return f"{record.at[:19]}Z  {record.seq:>5}  {place:<10}  {_WORDS[record.kind](record.fields)}"


def _run_started(fields: Mapping[str, Any]) -> str:
    config = fields["config"]
    fork = fields.get("forked_from")
    start = "started" if fork is None else f"forked from run {fork['run_id'][:8]} at batch {fork['batch']}"
    return (
        f"run {fields['run_id'][:8]} {start}: {counted(fields['num_batches'], 'batch')} of "
        f"{counted(config['batch_size'], 'group')} of "
        f"{config['group_size']}, model {config['model_name']} ({config['backend']})"
    )


def _process_started(fields: Mapping[str, Any]) -> str:
    resumed = fields["resumed_from"]
    where = "a new run" if resumed is None else f"resuming at {resumed['state']} of batch {resumed['batch']}"
    drift = "".join(f", {change['field']} changed" for change in fields["drift"])
    return f"process {fields['pid']} on {fields['host']} took over: {where}{drift}"


def _entered(fields: Mapping[str, Any]) -> str:
    again = f" (entry {fields['attempt'] + 1})" if fields["attempt"] else ""
    return f"{fields['state']} entered{again}"


def _transition(fields: Mapping[str, Any]) -> str:
    facts = _RESULTS.get(State(fields["source"]), _plainly)(fields["result"])
    return f"{fields['source']} -> {fields['dest']} after {fields['seconds']:.2f} s: {facts}"


def _checkpoint_saved(fields: Mapping[str, Any]) -> str:
    expires = f", expires {fields['expires_at'][:19]}" if fields["expires_at"] else ""
    return f"{fields['checkpoint_kind']} checkpoint {fields['name']} saved{expires}"


def _process_stopped(fields: Mapping[str, Any]) -> str:
    error = f": {fields['error']}" if fields["error"] else ""
    return f"process stopped in {fields['state']} ({fields['reason']}){error}"


_WORDS: Mapping[Kind, Callable[[Mapping[str, Any]], str]] = {
    Kind.RUN_STARTED: _run_started,
    Kind.PROCESS_STARTED: _process_started,
    Kind.STATE_ENTERED: _entered,
    Kind.TRANSITION: _transition,
    Kind.CHECKPOINT_SAVED: _checkpoint_saved,
    Kind.CHECKPOINT_LOST: lambda fields: f"checkpoint {fields['name']} dropped: {fields['reason']}",
    Kind.OPTIMIZER_PROBED: lambda fields: f"optimizer probe {'passed' if fields['passed'] else 'FAILED'}",
    Kind.CLIENT_LOST: lambda fields: f"training client lost in {fields['state']}, made again: {fields['reason']}",
    Kind.PROCESS_STOPPED: _process_stopped,
    Kind.RUN_FINISHED: lambda fields: f"run finished after {counted(fields['batches'], 'batch')}",
}


def _played(result: Mapping[str, Any]) -> str:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in result["outcomes"].items() if count)
    return f"{outcomes}; {result['sampled_tokens']} tokens sampled"


def _evaluated(result: Mapping[str, Any]) -> str:
    if not result["evaluated"]:
        return f"not evaluated ({result['reason']})"
    means = {
        name.removesuffix("/reward_mean").removeprefix("test").removeprefix("/"): value
        for name, value in result["metrics"].items()
        if name.startswith("test/") and name.endswith("/reward_mean")
    }
    rewards = ", ".join(f"{f'{name} ' if name else ''}mean reward {value:.3f}" for name, value in means.items())
    return f"evaluated ({result['reason']}): {rewards or 'no reward'}; {_played(result)}"


def _trained(result: Mapping[str, Any]) -> str:
    if result["skipped"]:
        return f"skipped ({result['reason']})"
    reward = result["metrics"].get("rollout/reward_mean")
    mean = "" if reward is None else f", mean reward {reward:.3f}"
    return f"{counted(result['optim_steps'], 'optimizer step')} on {counted(result['datums'], 'datum')}{mean}"


def _swapped(result: Mapping[str, Any]) -> str:
    checkpoint = f", checkpoint {result['checkpoint']}" if result["checkpoint"] else ""
    return f"policy version {result['policy_version']} is {result['sampler_path']}{checkpoint}"


def _plainly(result: Mapping[str, Any]) -> str:
    """For a state that somebody has added."""
    return ", ".join(f"{name} {value}" for name, value in result.items() if name != "metrics") or "done"


_RESULTS: Mapping[State, Callable[[Mapping[str, Any]], str]] = {
    State.PUBLISH_MODEL: lambda result: f"serving policy version {result['policy_version']}",
    State.MAYBE_EVALUATE: _evaluated,
    State.ROLLOUT: _played,
    State.TRAIN_STEP: _trained,
    State.SWAP_SAMPLER: _swapped,
    State.LOG: lambda result: f"metric row {result['step']}",
}


def follow_records(log_path: Path) -> Iterator[Record]:
    """The records of the journal of ``log_path``, those that are there and then those that come, until it is finished.

    Raises:
        JournalDamagedError: a record cannot be trusted.
    """
    told = 0
    size_bytes = -1
    while True:
        found_bytes = (log_path / JOURNAL_NAME).stat().st_size
        if found_bytes != size_bytes:
            reading = read_journal(log_path)
            yield from reading.records[told:]
            told, size_bytes = len(reading.records), found_bytes
            if reading.run.finished and not reading.run.running:
                return
        time.sleep(FOLLOW_SECONDS)
