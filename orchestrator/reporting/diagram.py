"""The machine drawn from its table, as Mermaid text."""

from orchestrator.names import INITIAL_STATE, TRANSITIONS, State


def mermaid() -> str:
    """A Mermaid state diagram of ``names.TRANSITIONS``."""
    lines = ["stateDiagram-v2", "    direction LR", f"    [*] --> {INITIAL_STATE}"]
    lines += [f"    {move.source} --> {move.dest}: {move.when}" for move in TRANSITIONS]
    return "\n".join([*lines, f"    {State.FINISHED} --> [*]"])
