"""tinker-cookbook's own synchronous loop over rollouts that are stored already, and every request that training sends.

Environments play stored rollouts again to the loop's real rollout code: what they observe and what the policy answers
is read from the store, so the loop forms its groups, advantages and datums from what our run was played with.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import chz
import numpy as np
import tinker
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from tinker_cookbook.checkpoint_utils import CheckpointManager
from tinker_cookbook.rl.train import Config, do_sync_training
from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, RLDataset, RLDatasetBuilder, StepResult
from tinker_cookbook.utils import ml_log

from orchestrator.backends.surface import SamplingClient, ServiceClient, TrainingClient
from orchestrator.rollouts.outcomes import Outcome, StoredRollout, Turn

TrainingRequest = tuple[str, bytes]
"""``forward_backward`` or ``optim_step``, and what the SDK sends for it, but for its place in the model's queue."""

_next_turn: ContextVar[Turn] = ContextVar("next_turn")
"""What the policy answers the environment of the current task."""


@dataclass
class RecordedTraining:
    """A training client that notes, in order, what is sent; ``client`` does the work."""

    client: TrainingClient
    requests: list[TrainingRequest] = field(default_factory=list)

    async def forward_backward_async(
        self, data: list[tinker.Datum], loss_fn: types.LossFnType, loss_fn_config: dict[str, float] | None = None
    ) -> Any:
        sent = types.ForwardBackwardInput(data=data, loss_fn=loss_fn, loss_fn_config=loss_fn_config)
        message = forward_backward_request_to_proto(types.ForwardBackwardRequest(sent, model_id="model"))
        self.requests.append(("forward_backward", message.SerializeToString(deterministic=True)))
        return await self.client.forward_backward_async(data, loss_fn, loss_fn_config)

    async def optim_step_async(self, adam_params: types.AdamParams) -> Any:
        self.requests.append(("optim_step", adam_params.model_dump_json().encode()))
        return await self.client.optim_step_async(adam_params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


@dataclass
class RecordedService:
    """A service client whose training clients note what is sent; ``service`` does the work."""

    service: ServiceClient
    requests: list[TrainingRequest] = field(default_factory=list)

    async def create_lora_training_client_async(self, *arguments: Any, **options: Any) -> RecordedTraining:
        client = await self.service.create_lora_training_client_async(*arguments, **options)
        return RecordedTraining(client, self.requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)


@chz.chz
class NoBuilder(RLDatasetBuilder):
    """The loop's configuration wants one; the loop itself is given its dataset."""

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        raise NotImplementedError


class CookbookLoop:
    """``rl.train.do_sync_training`` over stored rollouts."""

    def __init__(self, service: ServiceClient, tokenizer: Any, log_path: Path) -> None:
        self._service = service
        self._tokenizer = tokenizer
        self._log_path = log_path
        self.rows: list[dict[str, Any]] = []
        """The metrics of each batch."""

    async def train(
        self, batches: Sequence[Sequence[StoredRollout]], client: TrainingClient, **options: Any
    ) -> list[TrainingRequest]:
        """What the loop sends for ``batches``, each of them the last attempts at all its rollouts.

        ``options`` are fields of the cookbook's ``Config``.
        """
        config = Config(
            **{"learning_rate": 1e-3, **options},
            dataset_builder=NoBuilder(),
            model_name="tiny",
            recipe_name="replay",
            max_tokens=64,
            log_path=str(self._log_path),
            eval_every=0,
            save_every=0,
            num_groups_to_log=0,
        )
        recorded = _Trained(client, self._service, self._log_path.name)
        manager = CheckpointManager(cast("Any", recorded), cast("Any", self._service), str(self._log_path))
        await do_sync_training(
            start_batch=0,
            end_batch=len(batches),
            num_batches=len(batches),
            config=config,
            training_client=cast("Any", recorded),
            kl_reference_client=cast("Any", await self._reference(config)),
            evaluators=[],
            dataset=StoredDataset(batches),
            ml_logger=_Rows(self.rows),
            tokenizer=self._tokenizer,
            checkpoint_mgr=manager,
        )
        return recorded.requests

    async def _reference(self, config: Config) -> SamplingClient | None:
        """As ``rl.train.main`` makes it."""
        if config.kl_penalty_coef == 0:
            return None
        assert config.kl_reference_config is not None
        return await self._service.create_sampling_client_async(
            base_model=config.kl_reference_config.base_model, model_path=config.kl_reference_config.load_checkpoint_path
        )


class StoredDataset(RLDataset):
    """Batches of stored rollouts, those that succeeded.

    The cookbook can leave failed members out by itself, but then its groups are in the order in which members end.
    """

    def __init__(self, batches: Sequence[Sequence[StoredRollout]]) -> None:
        self._batches = batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        valid = [rollout for rollout in self._batches[index] if rollout.outcome is Outcome.SUCCEEDED]
        ordered = sorted(valid, key=lambda rollout: rollout.key)
        return [_StoredGroup(list(group)) for _, group in groupby(ordered, key=lambda rollout: rollout.key.group)]

    def __len__(self) -> int:
        return len(self._batches)


@dataclass
class _StoredGroup(EnvGroupBuilder):
    members: list[StoredRollout]

    async def make_envs(self) -> Sequence[Env]:
        return [_StoredEnv(rollout) for rollout in self.members]


class _StoredEnv(Env):
    """One stored rollout, observed turn by turn; its whole reward comes with the last one."""

    def __init__(self, rollout: StoredRollout) -> None:
        self._rollout = rollout
        self._turns = list(rollout.turns)

    async def initial_observation(self) -> tuple[tinker.ModelInput, list[str]]:
        return self._observe(), []

    async def step(self, action: Sequence[int], *, extra: ActionExtra | None = None) -> StepResult:
        assert list(action) == list(self._turns.pop(0).sampled_tokens)
        if self._turns:
            return StepResult(0.0, episode_done=False, next_observation=self._observe(), next_stop_condition=[])
        reward = self._rollout.reward
        assert reward is not None
        empty = tinker.ModelInput.empty()
        return StepResult(reward, episode_done=True, next_observation=empty, next_stop_condition=[])

    def _observe(self) -> tinker.ModelInput:
        _next_turn.set(self._turns[0])
        return tinker.ModelInput.from_ints(list(self._turns[0].prompt_tokens))


class _StoredSampler:
    """Answers every environment with what was sampled when its rollout was played."""

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        turn = _next_turn.get()
        assert (tuple(prompt.to_ints()), num_samples) == (turn.prompt_tokens, 1)
        await asyncio.sleep(0)  # as over a network, the calls of all environments are under way at once
        sequence = types.SampledSequence(
            stop_reason="stop" if turn.stop_reason == "stop" else "length",
            sequence_id="stored",
            tokens_np=np.array(turn.sampled_tokens, dtype=np.int32),
            logprobs_np=np.array(turn.logprobs, dtype=np.float32),
        )
        return types.SampleResponse(sequences=[sequence])


class _Trained(RecordedTraining):
    """The training client as the loop wants it: it also gives the sampler of each batch's policy.

    The one that the loop measures ``compute_post_kl`` with is of the real weights; both are one object to the loop.
    """

    def __init__(self, client: TrainingClient, service: ServiceClient, name: str) -> None:
        super().__init__(client)
        self._name = name
        self._service = service
        self._saved = 0

    async def save_weights_and_get_sampling_client_async(self) -> Any:
        self._saved += 1
        saving = await self.client.save_weights_for_sampler_async(f"{self._name}-{self._saved:06d}")
        path = (await saving.result_async()).path
        sampler = _StoredSampler()
        weights = await self._service.create_sampling_client_async(model_path=path)
        cast("Any", sampler).compute_logprobs_async = weights.compute_logprobs_async
        return sampler


class _Rows(ml_log.Logger):
    store = None

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    def log_hparams(self, config: Any) -> None:
        """Not of interest."""

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        self._rows.append(metrics)


async def logprobs_of(client: SamplingClient | Awaitable[SamplingClient], tokens: Sequence[int]) -> list[float | None]:
    """What weights say of ``tokens``: equal in every bit only where the weights are."""
    sampler = await client if isinstance(client, Awaitable) else client
    return await sampler.compute_logprobs_async(tinker.ModelInput.from_ints(list(tokens)))
