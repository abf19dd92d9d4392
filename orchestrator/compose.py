"""Makes what one process holds for all states of a run, in the order in which it is needed, and takes it down again."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import tinker
from tinker_cookbook.renderers import Message, get_renderer

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.service import Backend, make_backend
from orchestrator.backends.surface import ServiceClient
from orchestrator.config import Config
from orchestrator.context import Recorder, Resources
from orchestrator.disk import DISK, Disk
from orchestrator.errors import BackendError, ConfigError, UnrecoverableError
from orchestrator.journal.recovery import RunState
from orchestrator.reporting.logs import RunLogging
from orchestrator.reporting.metrics import MetricRows
from orchestrator.reporting.progress import Progress
from orchestrator.reporting.trackers.feed import open_trackers
from orchestrator.rollouts.adapters import SpanTurns
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.dataset import TaskBatches, TaskSets
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.provider import Provider
from orchestrator.rollouts.rendering import Rendering
from orchestrator.rollouts.runners.placements import open_runner
from orchestrator.telling import told
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.orphans import RUN_ID, tell_orphans
from orchestrator.training.probe import probe_optimizer
from orchestrator.training.publish import Publisher
from orchestrator.training.weights import Origin, TrainedWeights

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Seams:
    """Where a caller may reach into a run: to count requests, break the disk, or kill the process at a named point."""

    make_backend: Callable[[Config, Path, Disk], Backend] = make_backend
    observer: Callable[[str], None] = lambda _point: None
    """Called before and after every append to the journal, see ``Journal``, and every row that a tracker takes."""
    disk: Disk = DISK
    """Takes every durable write."""


async def load_rendering(config: Config, backend: Backend) -> Rendering:
    """The tokenizer of the model and the renderer, tried on one message and one reply.

    Raises:
        ConfigError: there is no such renderer, or it does not fit the tokenizer.
    """
    what = f"tokenizer of {config.model_name}"
    tokenizer = await reply_within(config.backend_timeout_seconds, backend.load_tokenizer(), what)
    try:
        renderer = get_renderer(config.renderer_name, tokenizer)
        renderer.build_generation_prompt([Message(role="user", content="Hello")])
        renderer.get_stop_sequences()
        renderer.parse_response(tokenizer.encode("Hello", add_special_tokens=False))
    except Exception as error:  # what a renderer raises for a tokenizer that lacks its markers is its own affair
        raise ConfigError(
            f"renderer_name={config.renderer_name}: does not work with the tokenizer of {config.model_name} "
            f"({type(error).__name__}: {error}). Give the renderer of the model's family, e.g. qwen3 or llama3; "
            "role_colon works with every tokenizer"
        ) from error
    return Rendering(renderer, tokenizer)


async def require_optimizer_restore(config: Config, service: ServiceClient, run: RunState, recorder: Recorder) -> None:
    """Probes the backend, journals what is found, and refuses to go on where a resume would lose the optimizer.

    Raises:
        UnrecoverableError: it does not come back with the weights.
        BackendError: the probe could not be carried out.
    """
    try:
        probe = await probe_optimizer(
            service,
            model_name=config.model_name,
            lora_rank=config.lora_rank,
            metadata={RUN_ID: run.run_id},
            timeout_seconds=config.backend_timeout_seconds,
        )
    except tinker.TinkerError as error:
        raise BackendError(
            f"probe_optimizer_restore=true: the probe failed ({told(error)}). The same command tries again"
        ) from error
    recorder.optimizer_probed(probe)
    if not probe.passed:
        raise UnrecoverableError(
            f"probe_optimizer_restore=true: {probe.told()}. A resume would go on with another optimizer than the run "
            "had. Report it to who runs the service; probe_optimizer_restore=false goes on all the same"
        )
    log.info(probe.told())


@asynccontextmanager
async def open_resources(
    config: Config,
    log_path: Path,
    run: RunState,
    *,
    backend: Backend,
    rendering: Rendering,
    recorder: Recorder,
    agent: Any,
    tasks: TaskSets,
    batches: TaskBatches,
    logs: RunLogging,
    seams: Seams,
    origin: Origin | None = None,
) -> AsyncIterator[Resources]:
    """The resources of a run, while the context is entered; ``origin`` gives the first weights of a fork.

    Raises:
        UnrecoverableError: no checkpoint is alive and the run cannot be redone; the gateway was not started.
        GatewayError: the gateway or the store's server did not come up.
        ConfigError: the key of the store is none.
    """
    async with AsyncExitStack() as stack:
        service = backend.service
        rest_client = service.create_rest_client()
        ledger = CheckpointLedger(config, log_path, rest_client, run=run, disk=seams.disk)
        weights = TrainedWeights(config, log_path, service, ledger, origin=origin)
        resumed_from = await weights.require_restorable(run)
        ledger.write_view(run)
        if run.processes > 1:  # the first one has left nothing yet
            await tell_orphans(rest_client, run)
            if resumed_from is not None and run.batch < run.num_batches and ledger.is_expiring(resumed_from):
                await weights.at_batch(run, run.batch, recorder=recorder)
            if config.probe_optimizer_restore and not run.optimizer_restores:
                await require_optimizer_restore(config, service, run, recorder)
        capture = Capture(run_seed=config.seed, run_id=run.run_id)
        provider = Provider(rendering=rendering, capture=capture, reveal=config.adapter != "capture")
        gateway = Gateway(
            provider=provider,
            kind=config.gateway,
            host=config.gateway_host,
            port=config.gateway_port,
            address=config.gateway_address,
            spans=config.adapter == "proxy",
        )
        logs.redact.add(gateway.key)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        logs.capture_loggers()  # again: LiteLLM has attached handlers of its own meanwhile
        runner = await stack.enter_async_context(
            open_runner(
                config,
                log_path,
                agent,
                store=gateway.store,
                capture=capture,
                spans=None if config.adapter == "capture" else SpanTurns(config.adapter, gateway.store),
                disk=seams.disk,
                keep_secret=logs.redact.add,
            )
        )
        trackers = open_trackers(config, log_path, run, redact=logs.redact, observer=seams.observer)
        stack.push_async_callback(trackers.close)
        yield Resources(
            disk=seams.disk,
            service=service,
            train_batches=batches,
            eval_sets=tasks.eval_sets,
            capture=capture,
            collector=Collector(
                runner,
                concurrency=config.concurrency,
                max_retries=config.max_retries,
                on_failure=config.on_failure,
                decode=rendering.tokenizer.decode,
                disk=seams.disk,
            ),
            weights=weights,
            ledger=ledger,
            publisher=Publisher(config, service, gateway, weights, ledger),
            metric_rows=stack.enter_context(closing(MetricRows(log_path, run, disk=seams.disk, send=trackers.write))),
            progress=stack.enter_context(Progress(logs.console, num_batches=run.num_batches, batches_done=run.batch)),
        )
