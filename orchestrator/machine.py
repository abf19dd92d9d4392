"""The machine: the table of transitions in ``transitions``, and the loop that enters, runs and commits each state.

Who does what:
- ``names`` holds the table; ``transitions`` refuses every move that is not in it.
- ``states`` (given, never imported here) hold the bodies, which do the effects.
- ``Journal`` makes a move durable: the append of a transition record is the commit.
- ``run`` gives the machine its bodies and the contexts they get, and interprets how the loop ended.

Bodies run between moves, never inside a callback of ``transitions``: there an exception or a cancelled await would
leave the machine in a state that the journal does not know.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from transitions import EventData
from transitions import Machine as TransitionTable

from orchestrator.context import Body, StateContext, StateResult
from orchestrator.errors import BackendError, OrchestratorError, StateFailedError, StopRequested
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind, Record
from orchestrator.names import TRANSITIONS, State
from orchestrator.telling import told


class StateMachine:
    """Drives a run from the state its journal is in to ``Finished``."""

    state: str
    """The machine's position; ``transitions`` sets it, and only ``advance`` moves it."""
    advance: Callable[..., bool]
    """The one trigger; made by ``transitions``."""

    def __init__(
        self,
        journal: Journal,
        bodies: Mapping[State, Body],
        enter: Callable[[Record], StateContext],
        *,
        stop: asyncio.Event,
        state_timeout_seconds: float,
        grace_seconds: float,
        may_enter: Callable[[State], None] = lambda _state: None,
    ) -> None:
        """Starts where the fold of ``journal`` stands.

        ``bodies`` has one entry for every state but ``Finished``; ``enter`` is told the record of the state just
        entered and gives its context. ``may_enter`` is asked before that record, and raises where the run is to end
        instead. Once ``stop`` is set a body has ``grace_seconds`` to finish before it is
        cancelled.
        """
        self._journal = journal
        self._bodies = bodies
        self._enter = enter
        self._stop = stop
        self._state_timeout_seconds = state_timeout_seconds
        self._grace_seconds = grace_seconds
        self._may_enter = may_enter
        build_table(self, initial=journal.run.state)

    async def drive(self) -> None:
        """Runs state after state until ``Finished``.

        Raises:
            StopRequested: ``stop`` was set; everything journaled so far stands.
            StateFailedError: a body raised or ran past ``state_timeout_seconds``.
            OrchestratorError: a body's own error, what ``may_enter`` raised, or a journal that could not be written.
        """
        run = self._journal.run
        while self.state != State.FINISHED:
            if self._stop.is_set():
                raise StopRequested
            source = State(self.state)
            self._may_enter(source)
            entered = self._journal.append(Kind.STATE_ENTERED, batch=run.batch, state=source, attempt=run.entries)
            started = time.monotonic()
            result = await self._run_body(source, self._enter(entered))
            self.advance(result=result, attempt=entered.fields["attempt"], seconds=time.monotonic() - started)

    def batches_remain(self, _event: EventData) -> bool:
        """The condition ``batches remain`` of the table."""
        return self._journal.run.batch < self._journal.run.num_batches

    def commit(self, event: EventData) -> None:
        """Appends the transition. If that fails the exception leaves the machine where it was."""
        result: StateResult = event.kwargs["result"]
        move: Any = event.transition
        self._journal.append(
            Kind.TRANSITION,
            batch=self._journal.run.batch,
            source=move.source,
            dest=move.dest,
            attempt=event.kwargs["attempt"],
            seconds=round(event.kwargs["seconds"], 6),
            result=result.to_json(),
        )

    async def _run_body(self, state: State, context: StateContext) -> StateResult:
        """The body's result; a body that is not done ``grace_seconds`` after ``stop`` is cancelled."""
        batch = self._journal.run.batch
        body = asyncio.ensure_future(self._bodies[state](context))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait(
                {body, stopping}, timeout=self._state_timeout_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not body.done() and self._stop.is_set():
                await asyncio.wait({body}, timeout=self._grace_seconds)
            if body.done():
                return body.result()
        except BackendError as error:
            raise BackendError(f"batch {batch}, state {state}: {error}") from error
        except (OrchestratorError, StopRequested):
            raise
        except Exception as error:
            raise StateFailedError(
                f"batch {batch}, state {state}: {told(error)}. Run the same command again to resume at this state, "
                "with log_level=debug to have the traceback with its messages in log.jsonl"
            ) from error
        finally:
            for task in (body, stopping):
                task.cancel()
            await asyncio.gather(body, stopping, return_exceptions=True)
        raise self._unfinished(state, batch)

    def _unfinished(self, state: State, batch: int) -> Exception:
        if self._stop.is_set():
            return StopRequested()
        return StateFailedError(
            f"batch {batch}, state {state}: not done after state_timeout_seconds={self._state_timeout_seconds:g}. Run "
            "the same command again to resume at this state, with a longer state_timeout_seconds if that was too short"
        )


def build_table(model: Any, *, initial: State) -> None:
    """Gives ``model`` the trigger ``advance`` over ``names.TRANSITIONS``; it has ``batches_remain`` and ``commit``."""
    conditions: dict[str, dict[str, str]] = {
        "batches remain": {"conditions": "batches_remain"},
        "none remain": {"unless": "batches_remain"},
    }
    TransitionTable(
        model=model,
        states=[state.value for state in State],
        transitions=[
            {
                "trigger": "advance",
                "source": transition.source.value,
                "dest": transition.dest.value,
                **conditions.get(transition.when, {}),
            }
            for transition in TRANSITIONS
        ],
        initial=initial.value,
        auto_transitions=False,
        ignore_invalid_triggers=False,
        queued=False,
        send_event=True,
        before_state_change="commit",
    )
