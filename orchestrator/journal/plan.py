"""The recovery plan: what a resume would keep, restore, redo and pay, told before anything is done."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from orchestrator.errors import SideFileDamagedError
from orchestrator.journal.checked import check_crc
from orchestrator.journal.durable import LineFile
from orchestrator.journal.records import eval_set_sizes
from orchestrator.journal.recovery import Checkpoint, RunState
from orchestrator.names import State, batch_name, counted


@dataclass(frozen=True, slots=True)
class Plan:
    """What resuming a run would do."""

    run_id: str
    """Empty: the run has not been journaled yet."""
    new: bool
    """Whether no state has been entered so far."""
    finished: bool
    first_batch: int
    """Where the run began: 0, or the batch it was forked at."""
    forked: bool
    batch: int
    num_batches: int
    state: State
    mode: Literal["train", "eval"] | None
    """Which rollouts the state collects; None: none."""
    kept_rollouts: int
    """Finished rollouts of that mode stored for this batch."""
    total_rollouts: int
    """How many there will be."""
    kept_turns: int | None
    """Turns of the unfinished ones that answer their calls when they are run again; None: their file is damaged."""
    weights_needed: bool
    """Whether a train step or a sampler save remains."""
    checkpoint: Checkpoint | None
    """What is restored, if it still lives; None: nothing, or the weights the run began with."""
    redone_batches: tuple[int, ...]
    """Train steps to redo from their stored datums, after that restore."""
    sampled_tokens: int | None
    """Estimate for the missing rollouts of this state; None: nothing to estimate it from."""
    trained_tokens: int | None
    """In the redone train steps; None: their results do not say."""
    processes: int
    kills: int
    lost_clients: int
    """Training clients that were lost and made again without a new process."""
    failures: int
    """How often this batch and state failed, lost training clients included."""
    last_reason: str | None
    """Why the last process that could say so stopped."""
    last_error: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the field names."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The plan in words: a line each for where, what is kept, redone and paid, and what went before."""
        if self.finished:
            return [f"nothing to do: the run has finished, {counted(self.num_batches, 'batch')}"]
        if self.new:
            fork = ", with the weights that its parent has there" if self.forked else ""
            return [f"a new run starts at batch {self.first_batch}{fork}"]
        lines = [f"resumes at {self.state} of batch {self.batch}, of {counted(self.num_batches, 'batch')}"]
        if self.mode is not None:
            lines.append(f"kept: {self.kept_rollouts} of {self.total_rollouts} {self.mode} rollouts{self._turns()}")
        lines.append(f"weights: {self._weights()}")
        lines.append(f"cost: {_about(self.sampled_tokens)} sampled, {_about(self.trained_tokens)} trained again")
        lost = f", {counted(self.lost_clients, 'training client')} lost and made again" if self.lost_clients else ""
        lines.append(f"so far: {counted(self.processes, 'process')}, {self.kills} of them killed{lost}")
        if self.last_reason is not None:
            lines.append(f"last stop: {self.last_reason}" + (f" ({self.last_error})" if self.last_error else ""))
        if self.failures:
            lines.append(f"this batch and state failed {counted(self.failures, 'time')}")
        return lines

    def _turns(self) -> str:
        if self.kept_turns is None:
            return "; the turns of unfinished ones are damaged, and sampled again"
        return f", {counted(self.kept_turns, 'turn')} of unfinished ones" if self.kept_turns else ""

    def _weights(self) -> str:
        if not self.weights_needed:
            return "not needed, nothing is restored"
        if self.checkpoint is None:
            restored = "those the run began with"
        else:
            expiry = f", expires {self.checkpoint.expires_at[:19]}Z" if self.checkpoint.expires_at else ""
            restored = f"checkpoint {self.checkpoint.name} ({counted(self.checkpoint.batch, 'batch')} trained{expiry})"
        if not self.redone_batches:
            return f"{restored}, no train step redone"
        first, last = self.redone_batches[0], self.redone_batches[-1]
        steps = (
            f"batch {first}" if first == last else f"{counted(len(self.redone_batches), 'batch')}, {first} to {last},"
        )
        return f"{restored}, then train steps of {steps} redone from stored datums"


def make_plan(run: RunState, log_path: Path) -> Plan:
    """What resuming ``run`` would do; reads its stored rollouts and writes nothing.

    Whether the checkpoint still lives is for the service to say; if it does not, an older one and more batches follow.
    A process that extends the horizon plans after its ``process_started``, which is what reopens a finished run.

    Raises:
        SideFileDamagedError: a line of the stored rollouts is not one.
    """
    mode, total = _rollouts_due(run)
    stored = [] if mode is None else stored_rollouts(log_path / "rollouts" / f"{batch_name(run.batch)}.{mode}.jsonl")
    kept = len({(rollout["group"], rollout["member"]) for rollout in stored if rollout["last"]})
    turns = () if mode is None else stored_turns(log_path / "turns" / f"{batch_name(run.batch)}.{mode}.jsonl", stored)
    weights_needed = run.batch < run.num_batches and not (run.state is State.LOG and run.batch == run.num_batches - 1)
    trained = run.trained_batches
    usable = [checkpoint for checkpoint in run.checkpoints if checkpoint.batch <= trained] if weights_needed else []
    checkpoint = max(reversed(usable), key=lambda live: live.batch, default=None)  # of equals the newest
    redone = range(run.first_batch if checkpoint is None else checkpoint.batch, trained if weights_needed else 0)
    return Plan(
        run_id=run.run_id,
        new=not run.batches and run.entries == 0,
        finished=run.finished,
        first_batch=run.first_batch,
        forked=run.forked_from is not None,
        batch=run.batch,
        num_batches=run.num_batches,
        state=run.state,
        mode=mode,
        kept_rollouts=kept,
        total_rollouts=total,
        kept_turns=None if turns is None else len(turns),
        weights_needed=weights_needed,
        checkpoint=checkpoint,
        redone_batches=tuple(batch for batch in redone if not _train_result(run, batch).get("skipped")),
        sampled_tokens=_sampled_tokens(run, stored, missing=total - kept, kept=sum(turns or ())),
        trained_tokens=_sum_or_none(_train_result(run, batch).get("trained_tokens") for batch in redone),
        processes=run.processes,
        kills=run.kills,
        lost_clients=run.lost_clients,
        failures=run.failures,
        last_reason=run.last_stop.reason if run.last_stop else None,
        last_error=run.last_stop.error if run.last_stop else None,
    )


def _rollouts_due(run: RunState) -> tuple[Literal["train", "eval"] | None, int]:
    """The mode that the current state collects and how many rollouts that makes."""
    if run.state is State.ROLLOUT:
        return "train", run.config["batch_size"] * run.config["group_size"]
    num_tasks = sum(eval_set_sizes(run.dataset).values())
    every = run.config.get("eval_every", 0)
    due = every and num_tasks and (run.batch % every == 0 or run.batch == run.num_batches)
    if run.state is State.MAYBE_EVALUATE and due:
        return "eval", num_tasks * run.config["eval_group_size"]
    return None, 0


def stored_rollouts(path: Path) -> list[dict[str, Any]]:
    """Of each whole line of a file of rollouts: ``group``, ``member``, ``last`` and how many ``sampled_tokens``.

    Raises:
        SideFileDamagedError: a line is not a stored rollout.
    """
    rollouts = []
    for number, line in enumerate(LineFile.read_lines(path), start=1):
        try:
            rollout = orjson.loads(line)
            fields = {name: rollout[name] for name in ("group", "member", "last")}
            fields["sampled_tokens"] = sum(len(turn["sampled_tokens"]) for turn in rollout["turns"])
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise SideFileDamagedError(
                f"{path}, line {number}: not a stored rollout ({error!r}). "
                "Restore the file from a copy, or delete the line to sample that rollout again"
            ) from error
        rollouts.append(fields)
    return rollouts


def stored_turns(path: Path, stored: list[dict[str, Any]]) -> tuple[int, ...] | None:
    """Of each turn in a file of turns whose attempt is not among the ``stored`` rollouts: its sampled tokens.

    None: a line is damaged, so nothing in the file is used.
    """
    finished = {(rollout["group"], rollout["member"]) for rollout in stored if rollout["last"]}
    attempts = Counter((rollout["group"], rollout["member"]) for rollout in stored)
    turns: list[int] = []
    try:
        for line in LineFile.read_lines(path):
            check_crc(line)
            call = orjson.loads(line)
            member = (call["group"], call["member"])
            if member not in finished and call["attempt"] == attempts[member]:
                turns += [len(sample["sampled_tokens"]) for sample in call["samples"]]
    except (SideFileDamagedError, ValueError, KeyError, TypeError):
        return None
    return tuple(turns)


def _sampled_tokens(run: RunState, stored: list[dict[str, Any]], *, missing: int, kept: int) -> int | None:
    """``missing`` rollouts at the mean number of tokens of those known: finished batches' and the stored ones.

    Of these ``kept`` tokens need not be sampled again.
    """
    if missing <= 0:
        return 0
    tokens, count = sum(rollout["sampled_tokens"] for rollout in stored), len(stored)
    for facts in run.batches.values():
        result = facts.results.get(run.state, {})
        if "sampled_tokens" in result and result.get("outcomes"):
            tokens += result["sampled_tokens"]
            count += sum(result["outcomes"].values())
    return max(0, round(missing * tokens / count) - kept) if count else None


def _train_result(run: RunState, batch: int) -> dict[str, Any]:
    return run.result(batch, State.TRAIN_STEP) or {}


def _sum_or_none(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value or 0 for value in known)


def _about(tokens: int | None) -> str:
    return "an unknown number of tokens" if tokens is None else f"about {tokens:,} tokens" if tokens else "no token"
