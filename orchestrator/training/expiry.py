"""When what a run would resume from expires, and whether that is too soon to wait for the next save that is due."""

from datetime import UTC, datetime, timedelta

from orchestrator.journal.recovery import Checkpoint, RunState
from orchestrator.names import State

PACE_BATCHES = 3
"""The pace is that of so many of the newest batches."""
LEAST_LEFT = timedelta(hours=1)
"""What expires sooner than this is told at a resume, however fast the run is."""


def pace(run: RunState) -> timedelta:
    """How long a batch takes: the mean of the newest ones, or as much of the first as has been done."""
    whole = [sum(facts.seconds.values()) for facts in run.batches.values() if State.LOG in facts.seconds]
    begun = [sum(facts.seconds.values()) for facts in run.batches.values()]
    newest = whole[-PACE_BATCHES:] or begun[-1:] or [0.0]
    return timedelta(seconds=sum(newest) / len(newest))


def resume_point(run: RunState) -> Checkpoint | None:
    """The newest checkpoint by the journal, of equals the one that lives longer; None: there is none."""
    return max(
        run.checkpoints, key=lambda kept: (kept.batch, _expiry(kept) or datetime.max.replace(tzinfo=UTC)), default=None
    )


def expires_too_soon(run: RunState, *, batches_to_next_save: int, lifetime_seconds: int | None, now: datetime) -> bool:
    """Whether a save is needed now, so that there is something to resume from until the next one.

    That is so where the resume point expires before the next save, ``batches_to_next_save`` batches from now, by the
    pace of the run, and either half of ``lifetime_seconds`` (that of a save made now) is over, so that a run that is
    killed can be taken up for as long again, or so little is left that the end of the next batch may be too late.
    """
    checkpoint = resume_point(run)
    expires_at = None if checkpoint is None else _expiry(checkpoint)
    if expires_at is None:
        return False
    left, batch = expires_at - now, pace(run)
    if left > (batches_to_next_save + 2) * batch:  # no pace is kept to the minute
        return False
    half = timedelta(seconds=(lifetime_seconds or 0) / 2)
    return left < max(2 * batch, half)


def time_left(checkpoint: Checkpoint, *, now: datetime) -> timedelta | None:
    """How long ``checkpoint`` still lives, negative where it does no more; None: for ever."""
    expires_at = _expiry(checkpoint)
    return None if expires_at is None else expires_at - now


def expires_within_a_batch(run: RunState, checkpoint: Checkpoint, *, now: datetime) -> bool:
    """Whether ``checkpoint`` may be gone before the run that resumes from it has saved another one."""
    left = time_left(checkpoint, now=now)
    return left is not None and left < max(2 * pace(run), LEAST_LEFT)


def _expiry(checkpoint: Checkpoint) -> datetime | None:
    return None if checkpoint.expires_at is None else datetime.fromisoformat(checkpoint.expires_at)
