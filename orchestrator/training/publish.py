"""Serving a batch's policy: its sampler behind the gateway, and the resource in the store that agents find it by."""

from dataclasses import dataclass

import structlog
import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.backends.surface import SamplingClient, ServiceClient
from orchestrator.config import Config
from orchestrator.journal.recovery import RunState
from orchestrator.rollouts.gateway import Gateway
from orchestrator.rollouts.provider import Policy
from orchestrator.rollouts.requests import SamplingDefaults
from orchestrator.training.checkpoints import CheckpointLedger, CheckpointRecorder
from orchestrator.training.weights import TrainedWeights

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """What is being served."""

    policy_version: int
    """The batch it is served in."""
    sampler_path: str
    resources_id: str
    """Where the store keeps the address of the gateway for this policy."""


class Publisher:
    """Publishes the policy of the batch that a run is in; asking again for the same batch changes nothing."""

    def __init__(
        self,
        config: Config,
        service: ServiceClient,
        gateway: Gateway,
        weights: TrainedWeights,
        ledger: CheckpointLedger,
    ) -> None:
        """Nothing is served before the first ``serve``."""
        self._config = config
        self._service = service
        self._gateway = gateway
        self._weights = weights
        self._ledger = ledger
        self._published: PublishedPolicy | None = None

    async def serve(self, run: RunState, *, recorder: CheckpointRecorder) -> PublishedPolicy:
        """Serves the policy of ``run.batch``, whose version is the batch.

        A new process calls this in whichever state it resumes. A sampler that is gone from the backend is saved again
        from the weights, which the journal and the stored datums can always give back.
        """
        if self._published is not None and self._published.policy_version == run.batch:
            return self._published
        sampler_path = run.sampler_path or await self._save_initial(run, recorder)
        try:
            sampling_client = await self._load(sampler_path)
        except tinker.NotFoundError:
            log.warning("the sampler is gone, saving it again from the weights", sampler_path=sampler_path)
            client = await self._weights.at_batch(run, run.batch, recorder=recorder)
            sampler_path = await self._ledger.save_sampler(client, batch=run.batch, num_batches=run.num_batches)
            sampling_client = await self._load(sampler_path)
        config = self._config
        resources_id = await self._gateway.publish(
            Policy(
                sampling_client=sampling_client,
                policy_version=run.batch,
                train=SamplingDefaults(config.max_tokens, config.temperature, config.top_p, config.top_k),
                eval=SamplingDefaults(config.max_tokens, config.eval_temperature, config.eval_top_p, config.eval_top_k),
            )
        )
        self._published = PublishedPolicy(run.batch, sampler_path, resources_id)
        return self._published

    async def _load(self, sampler_path: str) -> SamplingClient:
        request = self._service.create_sampling_client_async(model_path=sampler_path)
        return await reply_within(self._config.backend_timeout_seconds, request, f"loading sampler {sampler_path}")

    async def _save_initial(self, run: RunState, recorder: CheckpointRecorder) -> str:
        """Makes the weights that a new run begins with, and saves them as sampler and as the first checkpoint.

        With that checkpoint no later process has to make them again, which a service need not do identically.
        """
        first = run.first_batch
        if run.checkpoints:
            client = await self._weights.at_batch(run, first, recorder=recorder)
            return await self._ledger.save_sampler(client, batch=first, num_batches=run.num_batches)
        client = await self._weights.fresh(run)
        sampler_path = await self._ledger.save_sampler(client, batch=first, num_batches=run.num_batches)
        checkpoint = await self._ledger.save_state(client, batch=first, kind="initial", sampler_path=sampler_path)
        recorder.checkpoint_saved(checkpoint)
        self._ledger.write_view(run)
        return sampler_path
