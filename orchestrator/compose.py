"""Makes what one process holds for all states of a run, in the order in which it is needed, and takes it down again."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinker_cookbook.renderers import Message, get_renderer

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.service import Backend, make_backend
from orchestrator.config import Config
from orchestrator.context import Recorder, Resources
from orchestrator.disk import DISK, Disk
from orchestrator.errors import ConfigError
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
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.publish import Publisher
from orchestrator.training.weights import Origin, TrainedWeights


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
        metadata = {"orchestrator_run_id": run.run_id}
        ledger = CheckpointLedger(
            config, log_path, service.create_rest_client(), user_metadata=metadata, disk=seams.disk
        )
        weights = TrainedWeights(config, log_path, service, ledger, origin=origin)
        await weights.require_restorable(run)
        ledger.write_view(run)
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
                disk=seams.disk,
            ),
            weights=weights,
            ledger=ledger,
            publisher=Publisher(config, service, gateway, weights, ledger),
            metric_rows=stack.enter_context(closing(MetricRows(log_path, run, disk=seams.disk, send=trackers.write))),
            progress=stack.enter_context(Progress(logs.console, num_batches=run.num_batches, batches_done=run.batch)),
        )
