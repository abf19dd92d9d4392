"""With the same stored rollouts our train step sends what tinker-cookbook's own synchronous loop sends, byte for byte.

The law holds with ``shuffle_datums=false num_epochs=1``. Otherwise each pass sends the same datums in another order, as
stored. Where the cookbook trains a group that has nothing to compare, we train none.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from cookbook_loop import CookbookLoop, RecordedService, TrainingRequest, logprobs_of
from processes import fixture_d, run_child
from tinker.proto import tinker_public_pb2 as wire
from tinker_cookbook.rl.train import KLReferenceConfig

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig
from orchestrator.context import Recorder, StateContext, StateResult
from orchestrator.disk import DISK
from orchestrator.journal.durable import LineFile, sha256_of
from orchestrator.journal.log import read_journal
from orchestrator.journal.recovery import BatchFacts, RunState
from orchestrator.names import State
from orchestrator.rollouts.outcomes import Outcome, RolloutKey, StoredRollout, Turn, read_rollouts, rollout_path
from orchestrator.settings import load_config
from orchestrator.training.checkpoints import CheckpointLedger
from orchestrator.training.datums import load
from orchestrator.training.weights import TrainedWeights
from states import swap_sampler, train_step

GROUP_SIZE = 4
AS_THE_COOKBOOK = ("shuffle_datums=false", "learning_rate=0.001", f"group_size={GROUP_SIZE}")
REWARDS = (0.1, 0.7, -0.3, 1 / 3, 1.0, 0.0)
"""Most of them are no binary fractions, so that sums in another order would show."""


def play(random: Random, group: int, member: int, reward: float | None) -> StoredRollout:
    """An episode of one to three turns; a prompt mostly extends the turn before it, sometimes it begins anew."""

    def tokens(at_most: int) -> tuple[int, ...]:
        return tuple(random.randrange(10, 60) for _ in range(random.randint(1, at_most)))

    turns: list[Turn] = []
    prompt: tuple[int, ...] = (1, 2, group + 3)
    for _ in range(random.randint(1, 3)):
        sampled = tokens(4)
        turns.append(Turn(prompt, sampled, tuple(-random.random() * 6 for _ in sampled), 0, "stop"))
        prompt = (*prompt, *sampled, *tokens(3)) if random.random() < 0.7 else tokens(6)
    key, outcome = RolloutKey(0, "train", group, member), Outcome.FAILED if reward is None else Outcome.SUCCEEDED
    return StoredRollout(key, 0, True, outcome, reward, tuple(turns), None if reward is not None else "KeyError: x")


def played(seed: int) -> list[StoredRollout]:
    """A batch: mixed groups, two constant ones, and one in which a member failed."""
    random = Random(seed)
    rewards: list[list[float | None]] = [random.sample(REWARDS, GROUP_SIZE) for _ in range(3)]
    rewards += [[0.7] * GROUP_SIZE, [0.0] * GROUP_SIZE, [0.1, None, 0.7, 0.7]]
    random.shuffle(rewards)
    return [play(random, group, member, each) for group, of in enumerate(rewards) for member, each in enumerate(of)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


MakeService = Callable[[Path], LocalServiceClient]


@pytest.fixture
def make_service(cache: Path) -> Iterator[MakeService]:
    made: list[LocalServiceClient] = []

    def make(storage: Path) -> LocalServiceClient:
        made.append(LocalServiceClient(storage, options=LocalConfig(), renderer_name="role_colon", cache=cache))
        return made[-1]

    yield make
    for service in made:
        service.close()


class OurRun:
    """Batch 0 of a run whose rollouts are stored, in TrainStep and SwapSampler."""

    def __init__(self, log_path: Path, service: LocalServiceClient, rollouts: Sequence[StoredRollout]) -> None:
        self._log_path = log_path
        self._service = service
        path = rollout_path(log_path, 0, "train")
        file = LineFile(path)
        file.append(*(rollout.to_json() for rollout in rollouts))
        file.close()
        facts = {"file": str(path.relative_to(log_path)), "sha256": sha256_of(path)}
        self._run = RunState(run_id="run", num_batches=2, schedule_batches=2)
        self._run.batches[0] = BatchFacts({State.PUBLISH_MODEL: {"sampler_path": "first"}, State.ROLLOUT: facts})

    async def train(self, *settings: str) -> tuple[list[TrainingRequest], StateResult, StateResult]:
        """What is sent, and what the two states report."""
        base = [
            "recipe=none",
            "agent=none:none",
            "backend=local",
            "lora_rank=0",
            "save_every=0",
            "rolling_save_every=0",
        ]
        config = load_config([*base, f"log_path={self._log_path}", *AS_THE_COOKBOOK, *settings])
        service = RecordedService(self._service)
        ledger = CheckpointLedger(config, self._log_path, self._service.create_rest_client(), run=self._run)
        weights = TrainedWeights(config, self._log_path, cast("Any", service), ledger)
        await weights.fresh(self._run)
        resources = SimpleNamespace(service=service, weights=weights, ledger=ledger, disk=DISK)
        log, recorder, stop = structlog.get_logger(), cast("Recorder", None), cast("Any", None)
        context = StateContext(config, self._log_path, self._run, cast("Any", resources), recorder, log, stop)
        trained = await train_step.body(context)
        self._run.batches[0].results[State.TRAIN_STEP] = trained.to_json()
        return service.requests, trained, await swap_sampler.body(context)


class Both:
    """The two loops over the same rollouts, from the same weights."""

    def __init__(self, folder: Path, make_service: MakeService, rollouts: Sequence[StoredRollout]) -> None:
        self.cookbook_service = make_service(folder / "cookbook-local")
        self.run = OurRun(folder / "run", make_service(folder / "our-local"), rollouts)
        self._folder = folder
        self._rollouts = rollouts
        self.row: dict[str, Any] = {}
        """The cookbook's metrics."""

    async def cookbook(self, **options: Any) -> list[TrainingRequest]:
        service = self.cookbook_service
        loop = CookbookLoop(service, await service.get_tokenizer_async("tiny"), self._folder / "cookbook")
        client = await service.create_lora_training_client_async("tiny", rank=0, seed=0)
        requests = await loop.train([self._rollouts], client, **{"remove_constant_reward_groups": True, **options})
        self.row = loop.rows[0]
        return requests


def datums_in(requests: Sequence[TrainingRequest]) -> list[bytes]:
    """The datums of all forward_backward requests, in the order in which they are sent."""
    messages = [wire.ForwardBackwardRequest.FromString(sent) for kind, sent in requests if kind == "forward_backward"]
    return [datum.SerializeToString(deterministic=True) for message in messages for datum in message.data]


REFERENCE = KLReferenceConfig(base_model="tiny")
PARITY: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "constant groups removed": ({}, ()),
    "constant groups kept": ({"remove_constant_reward_groups": False}, ("remove_constant_reward_groups=false",)),
    "substeps": ({"num_substeps": 3}, ("num_substeps=3",)),
    "more substeps than datums": ({"num_substeps": 500}, ("num_substeps=500",)),
    "ppo": ({"loss_fn": "ppo"}, ("loss_fn=ppo",)),
    "ppo with its settings": (
        {"loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3}},
        ("loss_fn=ppo", "loss_fn_config.clip_low_threshold=0.9", "clip_high_threshold=1.3"),
    ),
    "cispo": ({"loss_fn": "cispo", "num_substeps": 2}, ("loss_fn=cispo", "num_substeps=2")),
    "KL penalty": ({"kl_penalty_coef": 0.3, "kl_reference_config": REFERENCE}, ("kl_penalty_coef=0.3",)),
    "discounted KL penalty, constant groups kept": (
        {
            "kl_penalty_coef": 0.3,
            "kl_discount_factor": 0.9,
            "kl_reference_config": REFERENCE,
            "remove_constant_reward_groups": False,
            "num_substeps": 2,
        },
        (
            "kl_penalty_coef=0.3",
            "kl_discount_factor=0.9",
            "kl_reference_config.base_model=tiny",
            "remove_constant_reward_groups=false",
            "num_substeps=2",
        ),
    ),
    "measured after the step": (
        {"compute_post_kl": True, "num_substeps": 2},
        ("compute_post_kl=true", "num_substeps=2"),
    ),
}


@pytest.mark.parametrize("name", PARITY)
async def test_every_request_is_the_cookbooks_byte_for_byte(
    name: str, tmp_path: Path, make_service: MakeService
) -> None:
    options, settings = PARITY[name]
    rollouts = played(sum(map(ord, name)))
    both = Both(tmp_path, make_service, rollouts)
    theirs = await both.cookbook(**options)
    ours, trained, swapped = await both.run.train(*settings)
    assert [kind for kind, _ in ours] == ["forward_backward", "optim_step"] * (len(ours) // 2)
    assert ours == theirs
    assert len(datums_in(ours)) > sum(len(rollout.turns) > 0 for rollout in rollouts) / 2, (
        "there is something to compare"
    )

    metrics = {**trained.metrics, **swapped.metrics}
    named = {f"optim/{key}" if key.startswith("kl_") else key: value for key, value in both.row.items()}
    compared = {key for key in metrics if key in named and key.startswith("optim/")}
    assert {"optim/kl_sample_train_v1", "optim/entropy"} <= compared
    assert ("optim/kl_policy_base" in compared) == ("kl_penalty_coef" in options)
    assert ("optim/kl_pre_post_v2" in compared) == ("compute_post_kl" in options)
    assert {key: metrics[key] for key in compared} == {key: named[key] for key in compared}


async def test_a_checkpoint_as_kl_reference_gives_the_cookbooks_penalty(
    tmp_path: Path, make_service: MakeService
) -> None:
    both = Both(tmp_path, make_service, played(5))
    service = both.cookbook_service
    client = await service.create_lora_training_client_async("tiny", rank=0)
    elsewhere = CookbookLoop(service, await service.get_tokenizer_async("tiny"), tmp_path / "reference")
    await elsewhere.train([played(6)], client)
    path = next((tmp_path / "cookbook-local").rglob("reference-000002"))
    reference = KLReferenceConfig(base_model="tiny", load_checkpoint_path=str(path))
    theirs = await both.cookbook(kl_penalty_coef=0.2, kl_reference_config=reference)
    ours, *_ = await both.run.train("kl_penalty_coef=0.2", f"kl_reference_config.load_checkpoint_path={path}")
    assert ours == theirs
    against_base = await Both(tmp_path / "base", make_service, played(5)).cookbook(
        kl_penalty_coef=0.2, kl_reference_config=REFERENCE
    )
    assert datums_in(theirs) != datums_in(against_base)


async def test_shuffled_passes_send_the_cookbooks_datums_in_the_order_that_is_stored(
    tmp_path: Path, make_service: MakeService
) -> None:
    both = Both(tmp_path, make_service, played(7))
    (_, theirs), (_, adam) = await both.cookbook()
    ours, *_ = await both.run.train("shuffle_datums=true", "num_epochs=3", "num_substeps=2")
    expected = datums_in([("forward_backward", theirs)])
    orders = load(tmp_path / "run", 0).orders
    sent = iter(datums_in(ours))
    assert len(set(orders)) == len(orders) == 3
    for order in orders:
        assert sorted(order) == list(range(len(expected)))
        assert [next(sent) for _ in order] == [expected[index] for index in order]
    assert next(sent, None) is None
    assert [sent for kind, sent in ours if kind == "optim_step"] == [adam] * 6


async def test_where_no_group_can_be_compared_the_cookbook_trains_one_and_we_none(
    tmp_path: Path, make_service: MakeService
) -> None:
    """The one difference in what is trained: an optimizer step of zero gradients would still move Adam's state."""
    constant = [play(Random(member), group, member, 0.7) for group in range(2) for member in range(GROUP_SIZE)]
    both = Both(tmp_path, make_service, constant)
    theirs = await both.cookbook()
    first = wire.ForwardBackwardRequest.FromString(theirs[0][1])
    assert all(not any(datum.loss_fn_inputs["advantages"].dense) for datum in first.data)
    ours, trained, _ = await both.run.train()
    assert ours == []
    assert trained.facts["reason"] == "no group to learn from: 2 with equal rewards"


async def test_a_whole_run_and_the_cookbooks_loop_come_to_the_same_weights(
    tmp_path: Path, make_service: MakeService
) -> None:
    """Three batches of real rollouts through the gateway; then the cookbook trains on what is stored."""
    settings = ("shuffle_datums=false", "num_substeps=2", "loss_fn=ppo", "kl_penalty_coef=0.1", "eval_every=0")
    child = fixture_d(tmp_path, *settings, "remove_constant_reward_groups=false")
    assert run_child(child) == 0, child.output
    run = read_journal(child.log_path).run
    results = [run.batches[batch].results for batch in range(3)]
    batches = [
        read_rollouts(rollout_path(child.log_path, batch, "train"), sha256=results[batch][State.ROLLOUT]["sha256"])
        for batch in range(3)
    ]
    service = make_service(child.log_path / "local")
    loop = CookbookLoop(service, await service.get_tokenizer_async("tiny"), tmp_path / "cookbook")
    client = await service.create_lora_training_client_async("tiny", rank=0, seed=42)
    theirs = await loop.train(
        batches, client, loss_fn="ppo", num_substeps=2, kl_penalty_coef=0.1, kl_reference_config=REFERENCE
    )
    assert len(theirs) == 2 * sum(result[State.TRAIN_STEP]["optim_steps"] for result in results)
    saved = {
        name: await logprobs_of(service.create_sampling_client_async(model_path=path), range(10, 40))
        for name, path in {
            "ours": run.batches[2].results[State.SWAP_SAMPLER]["sampler_path"],
            "theirs": str(next((child.log_path / "local").rglob("cookbook-000004"))),
        }.items()
    }
    assert saved["ours"] == saved["theirs"]
