"""One round of chaos: a run is killed, verified, taken up again, killed again, left to finish, and compared."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, cast

from orchestrator.chaos.blows import Blow
from orchestrator.chaos.children import (
    LEDGER,
    OUTPUT,
    RUN,
    ends_within,
    fork_context,
    print_into,
    run_observed,
    start_process,
    wait_for,
)
from orchestrator.chaos.differences import difference
from orchestrator.command import carry_out
from orchestrator.disk import FOLDER_MODE
from orchestrator.errors import RefusedError
from orchestrator.journal.durable import LineFile
from orchestrator.journal.log import read_journal
from orchestrator.journal.plan import make_plan
from orchestrator.process import end_with_parent
from orchestrator.rollouts.capture import call_seed
from orchestrator.rollouts.outcomes import StoredRollout
from orchestrator.rollouts.turns import TURNS, read_calls
from orchestrator.testing.ledger import read_ledger
from orchestrator.testing.outcome import outcome_of_run
from orchestrator.testing.points import KillAtNumber, NotePoints, Observer, watch_nothing
from orchestrator.verify import verify

KILLED = -9
UNDISTURBED_TIMEOUT_SECONDS = 3_600.0
START_UP = "start-up"
"""Where a kill was when the journal had no run yet."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill that happened, and what it left."""

    point: str
    """The name of the point, or the moment in words."""
    state: str
    """The machine's state, or ``start-up``."""
    kept_rollouts: int
    missing_rollouts: int
    redone_batches: int
    """Train steps that the resume takes again from their stored datums."""
    kept_turns: int = 0
    """Of rollouts that were not finished."""

    def __str__(self) -> str:
        return f"{self.point} in {self.state}"


@dataclass(slots=True)
class Round:
    """A run that was killed, and how it came out."""

    name: str
    """E.g. ``round-3`` or ``point-17``, by which the same one can be asked for again."""
    kills: list[Kill] = field(default_factory=list)
    difference: str | None = None
    """What was not as in the undisturbed run, or went wrong on the way; None: nothing."""
    requests: Counter[str] = field(default_factory=Counter)
    """How often each request was made, by all processes."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The run that nothing disturbed."""

    log_path: Path
    outcome: dict[str, Any]
    num_points: int
    """How many points it passed."""
    seconds: float
    requests: Mapping[str, int]

    @property
    def timeout_seconds(self) -> float:
        """How long a process of a killed run may take: far more than a whole run, on a machine that is busy too."""
        return 300 + 20 * self.seconds


class RunFailedError(Exception):
    """A process of a run ended as it should not have; the message says how and where its output is."""


class Runs:
    """Plays runs of one configuration, each in a folder of its own."""

    def __init__(self, settings: Sequence[str], *, run_seed: int) -> None:
        """``settings`` are the words of the run command."""
        self._settings = tuple(settings)
        self._run_seed = run_seed
        self._alive: set[ForkServerProcess] = set()
        self._ended = False

    @contextmanager
    def ended_with_us(self) -> Iterator[None]:
        """Whatever ends the block (Ctrl-C, an error) also ends the processes under way, and no more are started."""
        try:
            yield
        except BaseException:  # Ctrl-C among them; all go on to the caller, for only the processes are our business
            self._ended = True
            for process in list(self._alive):
                process.kill()
            raise

    def undisturbed(self, folder: Path) -> None:
        """A run to its end that notes its points in ``folder/points.txt``.

        Raises:
            RunFailedError: it did not finish.
        """
        folder.mkdir(mode=FOLDER_MODE)
        process = self._start(folder, NotePoints(folder / "points.txt"))
        code = self._wait(process, timeout_seconds=UNDISTURBED_TIMEOUT_SECONDS)
        if code != 0:
            raise RunFailedError(f"the undisturbed run ended with exit code {code}; see {folder / OUTPUT}")

    def reference(self, folder: Path, *, seconds: float) -> Reference:
        """What the undisturbed run in ``folder``, which took ``seconds``, is for the others."""
        points = (folder / "points.txt").read_text().splitlines()
        return Reference(folder / RUN, outcome_of_run(folder / RUN), len(points), seconds, requests_of(folder))

    def difference(self, folder: Path, reference: Reference) -> str | None:
        """Where the finished run in ``folder`` differs from the reference; None: nowhere."""
        return difference(folder / RUN, reference.log_path, reference.outcome)

    def play(self, name: str, blows: Sequence[Blow], folder: Path, reference: Reference) -> Round:
        """A run that takes ``blows``, one a process, then finishes, compared with ``reference``."""
        folder.mkdir(mode=FOLDER_MODE)
        played = Round(name)
        try:
            for blow in [*blows, None]:
                if not self._strike(blow, folder, played, reference.timeout_seconds):
                    break
            found = self.difference(folder, reference)
            differs = None if found is None else f"differs from the undisturbed run: {found}"
            played.difference = differs or _fault(folder / RUN)
        except (RunFailedError, RefusedError) as error:
            played.difference = str(error)
        played.requests = requests_of(folder)
        return played

    def _strike(self, blow: Blow | None, folder: Path, played: Round, timeout_seconds: float) -> bool:
        """One process; whether the blow met it."""
        note = folder / f"point-{len(played.kills)}.txt"
        at_point = blow is not None and blow.point is not None
        observer: Observer = KillAtNumber(blow.point, note) if blow and blow.point is not None else watch_nothing
        stored = self._stored_calls(folder / RUN)
        process = self._start(folder, observer)
        if blow is not None and blow.seconds is not None:
            ends_within(process, blow.seconds)
            process.kill()
        code = self._wait(process, timeout_seconds=timeout_seconds)
        if again := stored & _calls(folder / LEDGER, pid=cast("int", process.pid)):
            raise RunFailedError(f"{len(again)} calls whose turns are stored were sampled again after {_last(played)}")
        if code == 0:
            return False
        if code != KILLED or blow is None:
            raise RunFailedError(f"exit code {code} after {_last(played)}; see {folder / OUTPUT}")
        where = note.read_text() if at_point else f"{blow.seconds:.3f} s after the start"
        played.kills.append(_look(folder / RUN, where))
        if played.kills[-1].state != START_UP and (fault := _fault(folder / RUN)) is not None:
            raise RunFailedError(f"after {_last(played)}: {fault}")
        return True

    def _start(self, folder: Path, observer: Observer) -> ForkServerProcess:
        if self._ended:
            raise RunFailedError("chaos was interrupted")
        # No daemon: an agent may have child processes of its own.
        process = start_process(_child_main, self._settings, folder, observer, context=fork_context(), daemon=False)
        self._alive.add(process)
        return process

    def _wait(self, process: ForkServerProcess, *, timeout_seconds: float) -> int:
        try:
            return wait_for(process, timeout_seconds=timeout_seconds)
        except TimeoutError as error:
            raise RunFailedError(str(error)) from error
        finally:
            self._alive.discard(process)

    def _stored_calls(self, log_path: Path) -> set[tuple[int, tuple[int, ...]]]:
        """The seed and prompt of every stored turn, of finished rollouts and others, to know a repeated call by."""
        calls = set()
        for path in (log_path / "rollouts").glob("*.jsonl"):
            text = path.read_text()
            for line in text[: text.rfind("\n") + 1].splitlines():
                rollout = StoredRollout.from_json(line)
                repeats: Counter[tuple[int, ...]] = Counter()
                for turn in rollout.turns:
                    prompt = tuple(turn.prompt_tokens)
                    seed = call_seed(self._run_seed, rollout.key, rollout.attempt, prompt, repeats[prompt])
                    calls.add((seed, prompt))
                    repeats[prompt] += 1
        for path in (log_path / TURNS).glob("*.jsonl"):
            for answered in read_calls(path, LineFile.read_lines(path)):
                prompt = answered.prompt_tokens
                seed = call_seed(self._run_seed, answered.key, answered.attempt, prompt, answered.repeat)
                calls.add((seed, prompt))
        return calls


def requests_of(folder: Path) -> Counter[str]:
    """How often each request is in the ledger of ``folder``."""
    return Counter(line["request"] for line in read_ledger(folder / LEDGER))


def _fault(log_path: Path) -> str | None:
    """What ``verify`` finds; None: nothing."""
    verdict = verify(log_path)
    return None if verdict.passed else f"verify finds {verdict.lines()[-1]}"


def _look(log_path: Path, point: str) -> Kill:
    """What a kill left, by the journal."""
    run = read_journal(log_path).run
    if not run.run_id:
        return Kill(point, START_UP, 0, 0, 0)
    plan = make_plan(run, log_path)
    missing = plan.total_rollouts - plan.kept_rollouts
    return Kill(point, run.state.value, plan.kept_rollouts, missing, len(plan.redone_batches), plan.kept_turns or 0)


def _calls(ledger: Path, *, pid: int) -> set[tuple[int, tuple[int, ...]]]:
    """The seed and prompt of every sample request of a process."""
    lines = [line for line in read_ledger(ledger) if line["pid"] == pid and line["request"] == "sample"]
    return {(line["seed"][0], tuple(line["prompt"][0])) for line in lines}


def _last(played: Round) -> str:
    return f"kill {len(played.kills)} ({played.kills[-1]})" if played.kills else "no kill"


def _child_main(settings: Sequence[str], folder: Path, observer: Observer) -> None:
    end_with_parent()
    print_into(folder, OUTPUT, OUTPUT)
    sys.exit(carry_out(lambda: run_observed(settings, folder, observer)))
