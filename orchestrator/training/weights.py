"""The weights being trained: made once, restored when a state needs them, brought to a batch by redoing train steps.

Redoing is safe because a train step's input is stored before it is first sent: the same datums in the same order under
the same parameters, so the weights after it are the ones that the journal speaks of, whichever process computes them.
"""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import structlog
import tinker
from tinker_cookbook.rl.metrics import compute_kl_sample_train
from tinker_cookbook.rl.train import train_step

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import ServiceClient, TrainingClient
from orchestrator.config import Config
from orchestrator.errors import UnrecoverableError
from orchestrator.journal.recovery import Checkpoint, RunState
from orchestrator.names import INITIAL_STATE, State
from orchestrator.training.checkpoints import CheckpointLedger, CheckpointRecorder, candidates
from orchestrator.training.datums import TrainStepInput, check, load
from orchestrator.training.stake import client_at_stake

log = structlog.get_logger(__name__)

ResultT = TypeVar("ResultT")


class Origin(Protocol):
    """The run that another one was forked from, whose weights that one begins with."""

    async def require(self) -> None:
        """Raises UnrecoverableError or SideFileDamagedError where ``restore`` could not work."""
        ...

    async def restore(self) -> TrainingClient:
        """A new client with the weights and the optimizer that the fork begins with."""
        ...


class TrainedWeights:
    """Holds at most one training client, and knows how many batches its weights have been trained on."""

    def __init__(
        self,
        config: Config,
        log_path: Path,
        service: ServiceClient,
        ledger: CheckpointLedger,
        *,
        origin: Origin | None = None,
    ) -> None:
        """Nothing is created or loaded before a state asks for it. ``origin``: for a run that is a fork."""
        self._origin = origin
        self._config = config
        self._log_path = log_path
        self._service = service
        self._ledger = ledger
        self._client: TrainingClient | None = None
        self._trained_batches = 0

    async def fresh(self, run: RunState) -> TrainingClient:
        """The weights that a new run begins with.

        They are those of the base model, or of ``load_checkpoint_path`` without its optimizer, or, with it, those that
        the parent of a fork has at the fork's first batch.
        """
        if self._origin is not None:
            self._client = await self._origin.restore()
            self._trained_batches = run.first_batch
            return self._client
        if self._config.load_checkpoint_path is None:
            request = self._service.create_lora_training_client_async(
                self._config.model_name, rank=self._config.lora_rank, seed=self._config.seed
            )
        else:
            request = self._service.create_training_client_from_state_async(self._config.load_checkpoint_path)
        self._client = await self._reply(request, "creating a training client")
        self._trained_batches = 0
        return self._client

    def give_up(self) -> None:
        """The client is not used again: the next state that needs the weights has them restored."""
        self._client = None

    async def at_batch(self, run: RunState, batch: int, *, recorder: CheckpointRecorder) -> TrainingClient:
        """The training client whose weights have been trained on exactly the first ``batch`` batches.

        Where this process does not hold them they are restored, with the optimizer, from the newest live checkpoint,
        and the stored train steps since are redone.

        Raises:
            UnrecoverableError: no checkpoint lives and the run cannot be redone from the base model.
            SideFileDamagedError: the datums of a batch to redo are missing or changed.
        """
        if self._client is None or self._trained_batches > batch:
            await self._restore(run, batch, recorder)
        client = cast("TrainingClient", self._client)
        for redone in range(self._trained_batches, batch):
            facts = run.batches[redone].results[State.TRAIN_STEP]
            if not facts["skipped"]:
                log.info("redoing a stored train step", redone_batch=redone, optim_steps=facts["optim_steps"])
                step = load(self._log_path, redone, sha256=facts["sha256"])
                await self.apply(client, step)
            self._trained_batches = redone + 1
        return client

    async def apply(self, client: TrainingClient, step: TrainStepInput) -> dict[str, float]:
        """Sends one stored train step to ``client``, which must stand at ``step.batch``; returns its metrics.

        A failure on the way leaves weights that no record describes, so the client is given up.

        Raises:
            ClientLostError: the state can go on with a new client.
        """
        metrics: dict[str, Any] = {}
        what = f"train step of batch {step.batch}"
        try:
            for order_index, order in enumerate(step.orders):
                request = train_step(
                    data_D=[step.datums[index] for index in order],
                    training_client=cast("Any", client),
                    learning_rate=step.learning_rate,
                    num_substeps=step.num_substeps,
                    loss_fn=cast("Any", step.loss_fn),
                    loss_fn_config=step.loss_fn_config,
                    metrics=metrics,
                )
                with client_at_stake(what):
                    logprobs = await self._reply(request, what)
                if order_index == 0:
                    metrics |= compute_kl_sample_train([step.datums[index] for index in order], logprobs)
        except BaseException:  # a cancelled wait leaves as much in doubt as an error; both go on to the caller
            self.give_up()
            raise
        self._trained_batches = step.batch + 1
        return {name: float(value) for name, value in metrics.items()}

    async def require_restorable(self, run: RunState, batch: int | None = None) -> Checkpoint | None:
        """Refuses a resume that could not get its weights back, before anything is spent; nothing is journaled.

        ``batch``: the weights after as many batches; None: those of wherever the run is.

        Returns the checkpoint that they would come back from; None: from the base model, or nothing is trained yet.

        Raises:
            UnrecoverableError, SideFileDamagedError: see ``at_batch``.
        """
        if batch is None:
            if self._origin is None and (run.batch, run.state) == (0, INITIAL_STATE):
                return None
            batch = run.batch + 1
        for checkpoint in candidates(run, at_most_batch=batch):
            if await self._ledger.is_live(checkpoint):
                self._require_datums(run, checkpoint.batch, batch)
                return checkpoint
        await self._require_base(run, batch)
        return None

    def _require_datums(self, run: RunState, first_batch: int, last_batch: int) -> None:
        """Checks what would be redone from ``first_batch`` to before ``last_batch`` against the journal's sha256."""
        for batch, facts in run.batches.items():
            step = facts.results.get(State.TRAIN_STEP)
            if first_batch <= batch < last_batch and step is not None and not step["skipped"]:
                check(self._log_path, batch, sha256=step["sha256"])

    async def _restore(self, run: RunState, batch: int, recorder: CheckpointRecorder) -> None:
        gone = []
        for checkpoint in candidates(run, at_most_batch=batch):
            if await self._load(checkpoint):
                break
            gone.append(checkpoint)
        else:
            await self._require_base(run, batch)
            if run.checkpoints:
                log.warning("no checkpoint is alive: redoing every batch from the first weights", batches=batch)
            await self.fresh(run)
        # Only now: a disk or account that was out of reach for one start must not cost the run its checkpoints.
        for checkpoint in gone:
            recorder.checkpoint_lost(checkpoint, reason="the backend no longer has it")
        if gone:
            self._ledger.write_view(run)

    async def _load(self, checkpoint: Checkpoint) -> bool:
        """Whether the weights and the optimizer of ``checkpoint`` are loaded now; it may be gone."""
        if not await self._ledger.is_live(checkpoint):
            return False
        log.info("restoring weights and optimizer", checkpoint=checkpoint.name, checkpoint_batch=checkpoint.batch)
        request = self._service.create_training_client_from_state_with_optimizer_async(checkpoint.state_path)
        try:
            self._client = await self._reply(request, f"restoring checkpoint {checkpoint.name}")
        except tinker.NotFoundError:  # it went between the look and the load
            self._ledger.tell_gone(checkpoint)
            return False
        self._trained_batches = checkpoint.batch
        return True

    async def _require_base(self, run: RunState, batch: int) -> None:
        if self._origin is not None:
            await self._origin.require()
        elif self._config.load_checkpoint_path is not None:
            raise UnrecoverableError(
                f"{self._log_path}: batch {run.batch}: no checkpoint is alive on the backend, and a run that began "
                f"from load_checkpoint_path={self._config.load_checkpoint_path} is not redone from it. Start a new run "
                "in another log_path, or bring one of the checkpoints named in checkpoints.jsonl back within reach"
            )
        self._require_datums(run, run.first_batch, batch)

    async def _reply(self, request: Awaitable[ResultT], what: str) -> ResultT:
        return await reply_within(self._config.backend_timeout_seconds, request, what)
