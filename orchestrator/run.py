"""One process at work on a run: it takes the run up, drives the machine as far as it goes, and says how it ended."""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack, ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import structlog

from orchestrator.admission import admit, require_origin, require_reference, take_up
from orchestrator.backends.counted import CountedService
from orchestrator.backends.service import Backend
from orchestrator.backends.surface import ServiceClient
from orchestrator.backends.usage import UsageLog
from orchestrator.compose import Seams, load_rendering, open_resources
from orchestrator.config import CONFIG_NAME, Config, config_json, flatten
from orchestrator.context import Recorder, StateContext
from orchestrator.errors import (
    EXIT_FINISHED,
    BudgetReachedError,
    ConfigError,
    GatewayError,
    InterruptedRunError,
    JournalWriteError,
    OrchestratorError,
    OwnWordsError,
    RefusedError,
    StopRequested,
)
from orchestrator.journal.durable import write_durably
from orchestrator.journal.lock import RunLock
from orchestrator.journal.log import Journal
from orchestrator.journal.plan import make_plan
from orchestrator.journal.records import Kind, Record
from orchestrator.journal.recovery import RunState
from orchestrator.lineage.fork import Fork
from orchestrator.machine import StateMachine
from orchestrator.reporting.budget import Budget, require_budget
from orchestrator.reporting.logs import PatientConsole, RunLogging, configure_logging
from orchestrator.reporting.metrics import MetricRows, has_final_row
from orchestrator.reporting.spans import open_spans
from orchestrator.reporting.spending import read_spending
from orchestrator.reporting.summarize import summarize
from orchestrator.reporting.summary import summary_panel
from orchestrator.reporting.trackers.feed import open_trackers
from orchestrator.reporting.trackers.requirements import check_trackers
from orchestrator.reporting.work import read_work
from orchestrator.rollouts.agents import load_agent
from orchestrator.rollouts.dataset import TaskBatches, TaskSets, load_batches, load_tasks
from orchestrator.rollouts.outcomes import PLAYS
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.turns import forget_turns, turn_path
from orchestrator.signals import StopSignal
from orchestrator.telling import told
from orchestrator.training.past import Parent
from orchestrator.unbegun import leave_nothing
from states import BODIES

log = structlog.get_logger(__name__)

WorkT = TypeVar("WorkT")

MAX_ERROR_CHARACTERS = 500


def run_to_end(config: Config, seams: Seams | None = None, *, fork: Fork | None = None) -> int:
    """Starts the run that ``config`` describes, or resumes the one that its ``log_path`` holds; returns the exit code.

    ``fork``: what a new run is forked from, and where the parent of a begun one is now; a fork resumes without it, too.

    Raises:
        ConfigError: nothing was started.
        RefusedError: what is there cannot be trusted; nothing was spent.
        InterruptedRunError: a signal stopped the run; it resumes.
        OrchestratorError: the run failed; it resumes.
    """
    check_trackers(config)
    tasks = load_tasks(config)
    batches = load_batches(config, tasks)
    if fork is not None and fork.forked_from.batch > batches.num_batches:
        raise ConfigError(
            f"--batch {fork.forked_from.batch}: the configuration has only {batches.num_batches} batches; give a "
            "larger n_epochs or max_batches"
        )
    agent = load_agent(config.agent)
    return asyncio.run(_Process(config, tasks, batches, agent, seams or Seams(), fork).run())


class _Process:
    """One process at work on a run."""

    def __init__(
        self,
        config: Config,
        tasks: TaskSets,
        batches: TaskBatches,
        agent: Any,
        seams: Seams,
        fork: Fork | None,
    ) -> None:
        self._config = config
        self._log_path = Path(config.log_path).absolute()  # an agent may change the working directory
        self._tasks = tasks
        self._batches = batches
        self._agent = agent
        self._seams = seams
        self._fork = fork
        self._stop = StopSignal()

    async def run(self) -> int:
        """Takes the run up, drives it as far as it goes, and journals how this process ended."""
        with ExitStack() as stack:
            stack.enter_context(self._stop.handled())
            stack.enter_context(RunLock.acquire(self._log_path))
            stack.callback(leave_nothing, self._log_path)
            journal = stack.enter_context(Journal(self._log_path, observer=self._seams.observer, disk=self._seams.disk))
            console = PatientConsole(stderr=True)
            logs = configure_logging(self._log_path, level=self._config.log_level, console=console)
            stack.enter_context(closing(logs))
            if journal.torn is not None:
                log.warning("a torn last record was cut off the journal and kept aside", offset=journal.torn.offset)
            drift = admit(journal, self._config, self._tasks, self._batches, self._log_path)
            self._forget_turns(journal.run)
            if self._nothing_to_do(journal.run):
                MetricRows(self._log_path, journal.run, disk=self._seams.disk).close()
                await open_trackers(self._config, self._log_path, journal.run, redact=logs.redact).close()
                console.print("nothing to do: the run has finished")
            else:
                require_budget(self._config, read_spending(self._log_path, journal.records))
                if self._fork is not None and not journal.records:
                    self._fork.bring_model(self._log_path)
                # Made before the run is taken up: a key, model or renderer that cannot be leaves no run behind.
                backend = self._seams.make_backend(self._config, self._log_path, self._seams.disk)
                await self._unless_stopped(backend.connect())
                rendering = await self._unless_stopped(load_rendering(self._config, backend))
                if not journal.records:
                    parent = self._parent(journal.run, backend.service)
                    origin = require_origin(self._config, backend.service) if parent is None else parent.require()
                    await self._unless_stopped(origin)
                await self._unless_stopped(require_reference(self._config, backend.service))
                take_up(journal, self._config, self._tasks, self._batches, drift, self._fork)
                logs.bind(run_id=journal.run.run_id)
                await self._drive_journaled(journal, logs, backend, rendering)
            work = read_work(self._log_path, journal.records, journal.run, live=False)
            spending = read_spending(self._log_path, journal.records)
            summary = summarize(journal.run, Path(self._config.log_path), work, spending)
            console.print(summary_panel(summary))
        return EXIT_FINISHED

    def _forget_turns(self, run: RunState) -> None:
        """Only the state that the journal is in may still have unfinished rollouts."""
        mode = PLAYS.get(run.state)
        under_way = None if mode is None else turn_path(self._log_path, run.batch, mode)
        forget_turns(self._log_path, under_way=under_way)

    def _parent(self, run: RunState, service: ServiceClient) -> Parent | None:
        """What a fork begins with; None: the run is none."""
        fork = run.forked_from if self._fork is None else self._fork.forked_from
        return None if fork is None else Parent(fork, service, needed_by=self._log_path)

    def _nothing_to_do(self, run: RunState) -> bool:
        return run.finished and self._batches.num_batches <= run.num_batches

    async def _unless_stopped(self, work: Awaitable[WorkT]) -> WorkT:
        try:
            return await self._stop.unless(work)
        except StopRequested:
            raise InterruptedRunError(self._stop.name, self._stop.exit_code) from None

    async def _drive_journaled(
        self, journal: Journal, logs: RunLogging, backend: Backend, rendering: Rendering
    ) -> None:
        def stopped(reason: str, error: str | None) -> None:
            run = journal.run
            journal.append(Kind.PROCESS_STOPPED, reason=reason, batch=run.batch, state=run.state, error=error)

        try:
            write_durably(self._log_path / CONFIG_NAME, config_json(flatten(self._config)), disk=self._seams.disk)
            logs.console.print("\n".join(make_plan(journal.run, self._log_path).lines()), highlight=False)
            await self._drive(journal, logs, backend, rendering)
            journal.append(Kind.RUN_FINISHED, batches=journal.run.num_batches)
            stopped("finished", None)
        except StopRequested:
            stopped("interrupted", None)
            raise InterruptedRunError(self._stop.name, self._stop.exit_code) from None
        except Exception as error:
            # The command tells the error in one line; where it came from is for the log file, see ``telling``.
            log.debug("the run stopped", exc_info=True)
            with suppress(JournalWriteError):  # if the journal itself cannot be written, the error that says so is told
                # A port that somebody else holds is no failure of the state: it uses up none of its attempts.
                reason = "refused" if isinstance(error, (RefusedError, GatewayError)) else "failed"
                reason = "budget" if isinstance(error, BudgetReachedError) else reason
                stopped(reason, logs.redact(_first_line(error)))
            if isinstance(error, OrchestratorError):
                raise
            raise OrchestratorError(
                f"batch {journal.run.batch}, state {journal.run.state}: {told(error)}. {self._log_path / 'log.jsonl'} "
                "has where it came from; the same command resumes, with log_level=debug to have its messages there too"
            ) from error

    async def _drive(self, journal: Journal, logs: RunLogging, backend: Backend, rendering: Rendering) -> None:
        """Makes the resources, drives the machine, and writes the final evaluation's row."""
        config, log_path, run, recorder = self._config, self._log_path, journal.run, Recorder(journal)
        async with AsyncExitStack() as stack:
            loop = asyncio.get_running_loop()
            before = read_spending(log_path, journal.records)
            budget = Budget(config, before, on_reached=lambda: loop.call_soon_threadsafe(self._stop.event.set))
            stack.callback(budget.close)
            if budget.seconds_left is not None:
                stack.callback(loop.call_later(budget.seconds_left, budget.look).cancel)
            usage = stack.enter_context(
                UsageLog(
                    log_path,
                    process=run.processes - 1,
                    batch=run.batch,
                    state=run.state.value,
                    heard=budget.spend,
                )
            )
            service = CountedService(backend.service, usage)
            opening = open_resources(
                config,
                log_path,
                run,
                backend=replace(backend, service=service),
                rendering=rendering,
                recorder=recorder,
                agent=self._agent,
                tasks=self._tasks,
                batches=self._batches,
                logs=logs,
                seams=self._seams,
                origin=self._parent(run, service),
            )
            resources = await self._stop.unless(stack.enter_async_context(opening))

            def enter(entered: Record) -> StateContext:
                place = {"batch": run.batch, "state": run.state.value, "attempt": entered.fields["attempt"]}
                logs.bind(**place, journal_seq=entered.seq)
                usage.enter(run.batch, run.state.value)
                self._forget_turns(run)
                resources.progress.enter(run.state, run.batch)
                return StateContext(config, log_path, run, resources, recorder, log, self._stop.event)

            spans = stack.enter_context(open_spans(config, log_path, disk=self._seams.disk))
            machine = StateMachine(
                journal,
                spans.around(BODIES),
                enter,
                resources.weights.give_up,
                stop=self._stop.event,
                state_timeout_seconds=config.state_timeout_seconds,
                grace_seconds=config.grace_seconds,
                max_attempts=config.max_attempts,
                may_enter=budget.enter,
            )
            try:
                await machine.drive()
            except StopRequested:
                if self._stop.received is None:  # nobody asked for it but a budget
                    budget.require()
                raise
            self._forget_turns(run)
            if has_final_row(run):
                resources.metric_rows.write(run, run.batch)


def _first_line(error: Exception) -> str:
    """The error as the journal keeps it: one line, and no more than a few hundred characters."""
    words = told(error).partition("\n")[0]
    text = f"{type(error).__name__}: {words}" if isinstance(error, OwnWordsError) else words
    return text if len(text) <= MAX_ERROR_CHARACTERS else f"{text[:MAX_ERROR_CHARACTERS]}..."
