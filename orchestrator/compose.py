"""Makes what one process holds for all states of a run, in the order in which it is needed, and takes it down again."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from tinker_cookbook.renderers import get_renderer

from orchestrator.backends.service import Backend
from orchestrator.config import Config
from orchestrator.context import Recorder, Resources
from orchestrator.journal.recovery import RunState
from orchestrator.reporting.logs import RunLogging
from orchestrator.reporting.metrics import MetricRows
from orchestrator.reporting.progress import Progress
from orchestrator.rollouts.capture import Capture
from orchestrator.rollouts.collect import Collector
from orchestrator.rollouts.dataset import TaskBatches, TaskSets
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.provider import Provider
from orchestrator.rollouts.runners import InlineRunner
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.publish import Publisher
from orchestrator.training.weights import TrainedWeights


@asynccontextmanager
async def open_resources(
    config: Config,
    log_path: Path,
    run: RunState,
    *,
    backend: Backend,
    recorder: Recorder,
    agent: Any,
    tasks: TaskSets,
    batches: TaskBatches,
    logs: RunLogging,
) -> AsyncIterator[Resources]:
    """The resources of a run, while the context is entered.

    Raises:
        UnrecoverableError: no checkpoint is alive and the run cannot be redone; the gateway was not started.
        GatewayError: the gateway did not come up.
    """
    async with AsyncExitStack() as stack:
        service = backend.service
        metadata = {"orchestrator_run_id": run.run_id}
        ledger = CheckpointLedger(config, log_path, service.create_rest_client(), user_metadata=metadata)
        weights = TrainedWeights(config, log_path, service, ledger)
        await weights.require_restorable(run, recorder=recorder)
        ledger.write_view(run)
        tokenizer = await backend.load_tokenizer()
        capture = Capture(run_seed=config.seed)
        renderer = get_renderer(config.renderer_name, tokenizer)
        gateway = Gateway(
            provider=Provider(renderer=renderer, tokenizer=tokenizer, capture=capture), port=config.gateway_port
        )
        logs.redact.add(gateway.key)
        await gateway.start()
        stack.push_async_callback(gateway.stop)
        logs.capture_loggers()  # again: LiteLLM has attached handlers of its own meanwhile
        runner = InlineRunner(
            agent, store=gateway.store, capture=capture, timeout_seconds=config.rollout_timeout_seconds
        )
        stack.callback(runner.close)
        yield Resources(
            service=service,
            train_batches=batches,
            val_tasks=tasks.val,
            collector=Collector(
                runner,
                concurrency=config.concurrency,
                max_retries=config.max_retries,
                on_failure=config.on_failure,
            ),
            weights=weights,
            ledger=ledger,
            publisher=Publisher(config, service, gateway, weights, ledger),
            metric_rows=stack.enter_context(closing(MetricRows(log_path, run))),
            progress=stack.enter_context(Progress(logs.console, num_batches=run.num_batches, batches_done=run.batch)),
        )
