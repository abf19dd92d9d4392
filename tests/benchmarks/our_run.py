"""One whole run of the program in this process, on an embedded backend that is paced and timed."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from benchmarks.paced import PacedService, Requests

from orchestrator.backends.service import Backend, make_backend
from orchestrator.compose import Seams
from orchestrator.config import Config
from orchestrator.disk import Disk
from orchestrator.journal.log import read_journal
from orchestrator.names import State
from orchestrator.run import run_to_end
from orchestrator.settings import load_config

STATES = 6


@dataclass(frozen=True)
class Measured:
    """What a whole run took, from its libraries' being there to its end."""

    seconds: float
    counts: Mapping[str, int]
    """Requests to the backend."""
    batches: Sequence[tuple[float, float]] = ()
    """From when to when each batch went, in ``time.perf_counter()`` seconds."""
    state_seconds: Mapping[str, Sequence[float]] | None = None
    """What the journal says each state took, by batch."""


THREE_TURNS = (
    "recipe=none",
    "agent=benchmarks.agents:agent",
    "train_dataset=benchmarks.agents:tasks",
    "shuffle=false",
    "backend=local",
    "model_name=tiny",
    "local.warm_start=orchestrator.recipes.guess_number:demonstrations",
    "lora_rank=0",
    "max_tokens=2",
    "learning_rate=1e-4",
    "eval_every=0",
)
"""A run of the benchmarks' own agent."""


def run(
    settings: Sequence[str],
    folder: Path,
    *,
    pace: Mapping[str, float] | None = None,
    requests: Requests | None = None,
    observer: Callable[[str], None] = lambda _point: None,
) -> Measured:
    """Runs to the end in ``folder/run``; a process can do this once."""
    asked = Requests() if requests is None else requests
    transitions: list[float] = []

    def make_paced(config: Config, log_path: Path, disk: Disk) -> Backend:
        backend = make_backend(config, log_path, disk)
        return replace(backend, service=PacedService(backend.service, pace or {}, asked))

    def observe(point: str) -> None:
        if point == "append:after:transition":
            transitions.append(time.perf_counter())
        observer(point)

    log_path = folder / "run"
    config = load_config([*settings, f"log_path={log_path}"], environ={})
    began = time.perf_counter()
    run_to_end(config, Seams(make_paced, observe))
    seconds = time.perf_counter() - began
    ends = transitions[STATES - 1 :: STATES]
    facts = read_journal(log_path).run.batches
    trained = [facts[batch] for batch in sorted(facts) if State.LOG in facts[batch].seconds]
    state_seconds = {state.value: [batch.seconds[state] for batch in trained] for state in list(State)[:STATES]}
    return Measured(seconds, Counter(asked.counts), list(pairwise(ends)), state_seconds)
