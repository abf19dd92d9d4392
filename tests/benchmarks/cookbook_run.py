"""The default recipe's task by tinker-cookbook's own synchronous loop: an in-process Env, the same backend, no HTTP.

It is asked for the same work: each call has the seed that a run of ours gives it, so the same games are played, the
datums are passed as often and in the same order, and the same saves are made. Who measures compares the counts.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import tinker
from benchmarks.our_run import Measured
from benchmarks.paced import PacedService, Requests
from tinker import types
from tinker_cookbook.checkpoint_utils import CheckpointManager
from tinker_cookbook.renderers import Message, Renderer, get_renderer
from tinker_cookbook.rl import train
from tinker_cookbook.rl.types import ActionExtra, Env, EnvGroupBuilder, RLDataset, StepResult
from tinker_cookbook.utils import ml_log

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import Config
from orchestrator.recipes.guess_number import NUM_GUESSES, NUMBERS, QUESTION, _answer
from orchestrator.rollouts.capture import call_seed
from orchestrator.rollouts.dataset import TaskBatches, load_batches, load_tasks
from orchestrator.rollouts.outcomes import RolloutKey
from orchestrator.rollouts.trajectories import datum_order
from orchestrator.settings import load_config

_playing: ContextVar[RolloutKey] = ContextVar("_playing")
"""Whose calls those of this task are; set by its Env."""


class GuessEnv(Env):
    """One game of ``guess_number``, as its agent plays it."""

    def __init__(self, key: RolloutKey, number: int, renderer: Renderer) -> None:
        """``number`` is to be found."""
        self._key, self._number, self._renderer = key, number, renderer
        self._low, self._high = min(NUMBERS), max(NUMBERS)
        self._messages = [Message(role="user", content=QUESTION)]
        self._guesses = 0

    async def initial_observation(self) -> tuple[tinker.ModelInput, Any]:
        """The question."""
        _playing.set(self._key)
        return self._prompt(), self._renderer.get_stop_sequences()

    async def step(self, action: list[int], *, extra: ActionExtra | None = None) -> StepResult:
        """Judges a guess."""
        message, _ = self._renderer.parse_response(action)
        reply = message["content"]
        if not isinstance(reply, str) or len(reply) != 1 or reply not in "0123456789":
            return self._result(-0.25, done=True)
        guess = int(reply)
        self._guesses += 1
        if guess == self._number:
            return self._result(1.0, done=True)
        reward = 0.0 if self._low <= guess <= self._high else -0.125
        answer, self._low, self._high = _answer(guess, self._number, self._low, self._high)
        self._messages += [Message(role="assistant", content=reply), Message(role="user", content=answer)]
        return self._result(reward, done=self._guesses == NUM_GUESSES)

    def _prompt(self) -> tinker.ModelInput:
        return self._renderer.build_generation_prompt(self._messages)

    def _result(self, reward: float, *, done: bool) -> StepResult:
        return StepResult(reward, done, self._prompt(), self._renderer.get_stop_sequences())


@dataclass(frozen=True)
class Group(EnvGroupBuilder):
    """The games of one task."""

    batch: int
    group: int
    size: int
    number: int
    renderer: Renderer

    async def make_envs(self) -> Sequence[Env]:
        """``size`` games."""
        keys = [RolloutKey(self.batch, "train", self.group, member) for member in range(self.size)]
        return [GuessEnv(key, self.number, self.renderer) for key in keys]


@dataclass(frozen=True)
class Games(RLDataset):
    """The batches of our run, in its order."""

    batches: TaskBatches
    group_size: int
    renderer: Renderer

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """A group a task."""
        tasks = [task for _, task in self.batches.batch(index)]
        size, renderer = self.group_size, self.renderer
        return [Group(index, group, size, task["number"], renderer) for group, task in enumerate(tasks)]

    def __len__(self) -> int:
        return self.batches.num_batches


class _Trained:
    """The training client, with what the loop calls of the SDK's beyond our surface."""

    def __init__(self, client: Any, service: Any, run_seed: int) -> None:
        self._client, self._service, self._seed = client, service, run_seed
        self._saved = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def save_weights_and_get_sampling_client_async(self) -> Any:
        """Saves under a name of its own, as the SDK does."""
        self._saved += 1
        saving = await self._client.save_weights_for_sampler_async(f"sampler-{self._saved}")
        saved = await saving.result_async()
        return _Seeded(await self._service.create_sampling_client_async(model_path=saved.path), self._seed)


class _Seeded:
    """A sampling client whose calls have the seeds of our run."""

    def __init__(self, client: Any, run_seed: int) -> None:
        self._client, self._run_seed = client, run_seed

    async def sample_async(
        self, prompt: types.ModelInput, num_samples: int, sampling_params: types.SamplingParams
    ) -> types.SampleResponse:
        seed = call_seed(self._run_seed, _playing.get(), 0, prompt.to_ints(), 0)
        params = sampling_params.model_copy(update={"seed": seed})
        return cast("types.SampleResponse", await self._client.sample_async(prompt, num_samples, params))


def run(settings: Sequence[str], folder: Path, *, pace: Mapping[str, float] | None = None) -> Measured:
    """Trains to the end; ``settings`` are those of our run."""
    logging.getLogger().setLevel(logging.WARNING)
    config = load_config([*settings, f"log_path={folder / 'run'}"], environ={})
    batches = load_batches(config, load_tasks(config))
    asked = Requests()
    began = time.perf_counter()
    asyncio.run(_run(config, batches, folder, pace or {}, asked))
    return Measured(time.perf_counter() - began, asked.counts)


async def _run(config: Config, batches: TaskBatches, folder: Path, pace: Mapping[str, float], asked: Requests) -> None:
    local = LocalServiceClient(folder / "local", options=config.local, renderer_name=config.renderer_name)
    service = PacedService(local, pace, asked)
    tokenizer = await local.get_tokenizer_async(config.model_name)
    making = service.create_lora_training_client_async(config.model_name, rank=config.lora_rank, seed=config.seed)
    client = _Trained(await making, service, config.seed)
    log_path = folder / "cookbook"
    log_path.mkdir()
    thresholds = {"clip_low_threshold": config.clip_low_threshold, "clip_high_threshold": config.clip_high_threshold}
    its_config = train.Config(
        learning_rate=config.learning_rate,
        dataset_builder=cast("Any", None),
        model_name=config.model_name,
        recipe_name="benchmark",
        max_tokens=config.max_tokens,
        log_path=str(log_path),
        eval_every=0,
        save_every=0,
        renderer_name=config.renderer_name,
        loss_fn=config.loss_fn,
        loss_fn_config={name: value for name, value in thresholds.items() if value is not None} or None,
        num_substeps=config.num_substeps,
        remove_constant_reward_groups=config.remove_constant_reward_groups,
    )
    manager = CheckpointManager(cast("Any", client), cast("Any", service), str(log_path))
    logger = ml_log.setup_logging(str(log_path), config=its_config)
    games = Games(batches, config.group_size, get_renderer(config.renderer_name, tokenizer))
    train.train_step = _Passes(config).train_step
    await train.do_sync_training(
        0, len(games), len(games), its_config, cast("Any", client), None, [], games, logger, tokenizer,
        checkpoint_mgr=manager,
    )  # fmt: skip
    await manager.save_final_async({"batch": len(games)})
    logger.close()


class _Passes:
    """The cookbook's ``train_step``, once a pass over the datums: its loop knows only one."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._batch = 0
        self._once = train.train_step

    async def train_step(self, data_D: list[tinker.Datum], **arguments: Any) -> list[Any]:  # noqa: N803 - its name
        """Logprobs of the first pass, in the order of ``data_D``."""
        batch, self._batch = self._batch, self._batch + 1
        logprobs: list[Any] = [None] * len(data_D)
        for epoch in range(self._config.num_epochs):
            order = datum_order(self._config.seed, batch, epoch, len(data_D))
            found = await self._once(data_D=[data_D[index] for index in order], **arguments)
            if epoch == 0:
                for index, each in zip(order, found, strict=True):
                    logprobs[index] = each
        return logprobs
