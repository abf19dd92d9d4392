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
from contextlib import suppress
from typing import Any

import structlog
from transitions import EventData
from transitions import Machine as TransitionTable

from orchestrator.context import Body, StateContext, StateResult
from orchestrator.errors import BackendError, ClientLostError, OrchestratorError, StateFailedError, StopRequested
from orchestrator.journal.log import Journal
from orchestrator.journal.records import Kind, Record
from orchestrator.names import TRANSITIONS, State
from orchestrator.telling import told

log = structlog.get_logger(__name__)

SECOND_TRY_SECONDS = 5.0
"""A lost training client is made again at once the first time, then after this, then after twice as long each time."""
LONGEST_WAIT_SECONDS = 300.0


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
        give_up_client: Callable[[], None],
        *,
        stop: asyncio.Event,
        state_timeout_seconds: float,
        grace_seconds: float,
        max_attempts: int,
        may_enter: Callable[[State], None] = lambda _state: None,
    ) -> None:
        """Starts where the fold of ``journal`` stands.

        ``bodies`` has one entry for every state but ``Finished``; ``enter`` is told the record of the state just
        entered and gives its context. ``may_enter`` is asked before that record, and raises where the run is to end
        instead. Once ``stop`` is set a body has ``grace_seconds`` to finish before it is cancelled. A state whose body
        loses the training client is entered again after ``give_up_client``, unless with that it has failed
        ``max_attempts`` times.
        """
        self._journal = journal
        self._bodies = bodies
        self._enter = enter
        self._give_up_client = give_up_client
        self._stop = stop
        self._state_timeout_seconds = state_timeout_seconds
        self._grace_seconds = grace_seconds
        self._max_attempts = max_attempts
        self._may_enter = may_enter
        build_table(self, initial=journal.run.state)

    async def drive(self) -> None:
        """Runs state after state until ``Finished``.

        Raises:
            StopRequested: ``stop`` was set; everything journaled so far stands.
            StateFailedError: a body raised or ran past ``state_timeout_seconds``.
            ClientLostError: the training client was lost in the same state once too often.
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
            try:
                result = await self._run_body(source, self._enter(entered))
            except ClientLostError as error:
                await self._lose_client(source, error)
                continue
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

    async def _lose_client(self, state: State, error: ClientLostError) -> None:
        """Journals the loss, after which the state is entered again as a new process would enter it.

        Bodies are made to be entered again after a kill at any moment, so this needs nothing of them: what they had
        stored and saved is found, and the weights are restored and redone. The loss counts as a failure of the state.

        Raises:
            ClientLostError: it has failed too often; the record of the process's end counts this one.
        """
        run = self._journal.run
        if run.failures + 1 >= self._max_attempts:
            raise ClientLostError(
                f"batch {run.batch}, state {state}: {error}. This state has failed {run.failures + 1} times; run the "
                f"same command again to resume, with a higher max_attempts than {self._max_attempts}"
            ) from error
        self._give_up_client()
        self._journal.append(Kind.CLIENT_LOST, batch=run.batch, state=state, reason=str(error))
        log.warning("the training client is lost and made again", reason=str(error), failures=run.failures)
        wait_seconds = min(LONGEST_WAIT_SECONDS, SECOND_TRY_SECONDS * 2 ** (run.failures - 2))
        if run.failures > 1:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), wait_seconds)

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
        except ClientLostError:
            raise
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
