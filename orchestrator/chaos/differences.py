"""Where a killed run differs from the undisturbed one, told by the rollout where it is one that differs."""

from pathlib import Path
from typing import Any

from orchestrator.journal.durable import LineFile
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.testing.outcome import first_difference, outcome_of_run

MEMORY = (
    "an agent that keeps something between rollouts (a counter, a cache, a random generator) loses it at a kill; "
    "so does one that looks at the clock"
)


def difference(log_path: Path, undisturbed: Path, expected: dict[str, Any]) -> str | None:
    """The first difference of the finished run in ``log_path``; None: there is none.

    ``expected`` is the outcome of the run in ``undisturbed``. Rollouts are looked at first, for what is trained on
    another rollout differs in everything after it.
    """
    for path in sorted((undisturbed / "rollouts").glob("*.jsonl")):
        found = _rollout_difference(path, log_path / "rollouts" / path.name)
        if found is not None:
            return found
    return first_difference(expected, outcome_of_run(log_path))


def _rollout_difference(undisturbed: Path, path: Path) -> str | None:
    expected = [StoredRollout.from_json(line) for line in LineFile.read_lines(undisturbed)]
    found = [StoredRollout.from_json(line) for line in LineFile.read_lines(path)]
    for one, other in zip(expected, found, strict=False):
        if one == other:
            continue
        if one.key != other.key or one.attempt != other.attempt:
            return f"rollouts/{path.name}: attempt {other.attempt} of {other.key}, expected {one.attempt} of {one.key}"
        where = f"rollout {one.key}, attempt {one.attempt}"
        if one.turns == other.turns:
            ended = f"{other.outcome} with reward {other.reward}, expected {one.outcome} with reward {one.reward}"
            return f"{where}: {ended}, and every token is the same: {MEMORY}"
        turns = enumerate(zip(one.turns, other.turns, strict=False))
        turn = next((number for number, (this, that) in turns if this != that), None)
        if turn is None:
            return f"{where}: {len(other.turns)} turns, expected {len(one.turns)}: {MEMORY}"
        if one.turns[turn].prompt_tokens != other.turns[turn].prompt_tokens:
            return f"{where}: turn {turn} has another prompt: {MEMORY}"
        return f"{where}: turn {turn} sampled other tokens from the same prompt"
    if len(expected) != len(found):
        return f"rollouts/{path.name}: {len(found)} attempts, expected {len(expected)}"
    return None
