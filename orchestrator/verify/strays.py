"""Files that belong to no batch the journal knows of: a copy from another run, or what a lost journal once named."""

import re
from collections.abc import Iterator

from orchestrator.backends.places import LOCAL_DIRECTORY
from orchestrator.errors import FaultFoundError
from orchestrator.names import State
from orchestrator.training.probe import NAME as PROBE_NAME
from orchestrator.verify.evidence import Evidence

CURE = (
    "Restore the journal that knows it, or remove it. If the journal was cut back on purpose, it may stay: the state "
    "that comes to it uses what still fits"
)
_UNFINISHED = re.compile(r"\..*\.tmp|\.unfinished-.*")
"""What a kill leaves of a file or folder that had not yet got its name."""
_WRITERS = (
    ("rollouts", re.compile(r"(\d{6})\.train\.jsonl"), State.ROLLOUT),
    ("rollouts", re.compile(r"(\d{6})\.eval\.jsonl"), State.MAYBE_EVALUATE),
    ("datums", re.compile(r"(\d{6})\.jsonl\.zst"), State.TRAIN_STEP),
)
_TURNS = (
    (re.compile(r"(\d{6})\.train\.jsonl(\.damaged-\d+)?"), State.ROLLOUT),
    (re.compile(r"(\d{6})\.eval\.jsonl(\.damaged-\d+)?"), State.MAYBE_EVALUATE),
)
"""Of the states that play: they are removed after the record that the state was left, or set aside for people."""
_SAVED = re.compile(r"(\d{6})(-rolling|-final)?")


def check_strays(evidence: Evidence) -> str:
    """Every file in the folders of the run's batches.

    Raises:
        FaultFoundError: one of them was written by no state that the journal knows.
    """
    known = set(_written(evidence))
    num_files = 0
    for folder, names in evidence.names.items():
        for name in names:
            if _UNFINISHED.fullmatch(name):
                continue
            num_files += 1
            if f"{folder}/{name}" in known:
                continue
            if folder.startswith(LOCAL_DIRECTORY) and (name == PROBE_NAME or _may_be_saved(evidence, name)):
                continue
            problem = f"belongs to nothing the journal knows of, which is in batch {evidence.run.batch}"
            raise FaultFoundError(evidence.log_path / folder / name, problem=problem, cure=CURE)
    return f"{num_files} files and checkpoints belong to batches of the run"


def _written(evidence: Evidence) -> Iterator[str]:
    """The side files that the journal names, and those of states that were entered and have not said what they wrote.

    A state that was entered again may have decided otherwise, under another cadence say: its first file stays.
    """
    entered, left = set(), set()
    for move in evidence.moves():
        left.add((move.batch, move.state))
        if move.result.get("file") is not None:
            yield move.result["file"]
        if move.attempt:
            entered.add((move.batch, move.state))
    if evidence.run.entries:
        entered.add((evidence.run.batch, evidence.run.state))
    for folder, pattern, state in _WRITERS:
        for name in evidence.names[folder]:
            matched = pattern.fullmatch(name)
            if matched and (int(matched[1]), state) in entered:
                yield f"{folder}/{name}"
    for pattern, state in _TURNS:
        for name in evidence.names["turns"]:
            matched = pattern.fullmatch(name)
            if matched and (int(matched[1]), state) in entered | left:
                yield f"turns/{name}"


def _may_be_saved(evidence: Evidence, name: str) -> bool:
    """Whether a checkpoint is of the weights of a batch that the run has reached: it may be between two records."""
    matched = _SAVED.fullmatch(name)
    return matched is not None and int(matched[1]) <= evidence.run.batch + 1
