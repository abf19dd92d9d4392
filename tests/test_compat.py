"""Each difference of servers like the service: the SDK alone does not take it, and a run does not notice it.

What is done about each is held to the contract by ``tests/contract``, whose party ``http-older`` has them all.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import tinker
from processes import Child
from tinker import types
from tinker_runs import OWNER, attempts, log_lines, outcome, run_unseen, service_run
from tinker_server import KEY, Fault, TinkerServer

from orchestrator.backends.compat import (
    BARE_FAILURES,
    BARE_SAMPLER_PATHS,
    DIFFERENCES,
    LATE_MISSING_SAMPLER,
    NO_CREATE_FROM_STATE,
    NO_SEQUENCE_IDS,
    SHORT_PROMPT_LOGPROBS,
    UNBRIDGED,
    accept_missing_sequence_ids,
    bridged,
    describe,
)
from orchestrator.names import CYCLE, State
from orchestrator.testing import KillAt

ENTERED = "append:after:state_entered"
PROMPT = types.ModelInput.from_ints([9, 12, 7, 20])
ONE_TOKEN = types.SamplingParams(max_tokens=1)


@pytest.fixture
def older(service: TinkerServer) -> TinkerServer:
    """The server that has them all, with an empty log."""
    service.older.forget()
    return service.older


@pytest.fixture
def client(older: TinkerServer, monkeypatch: pytest.MonkeyPatch) -> tinker.ServiceClient:
    """The SDK's own, as it is."""
    monkeypatch.setattr(accept_missing_sequence_ids.__globals__["sampling_client"], "_attach_sequence_ids", ATTACH)
    return tinker.ServiceClient(base_url=older.url, api_key=KEY)


def _unpatched() -> Callable[..., types.SampleResponse]:
    """The SDK's own function, whether or not an earlier test has had it replaced."""
    attach: Callable[..., types.SampleResponse] = accept_missing_sequence_ids.__globals__[
        "sampling_client"
    ]._attach_sequence_ids
    return getattr(attach, "__wrapped__", attach)


ATTACH = _unpatched()


async def fresh(client: tinker.ServiceClient, server: TinkerServer) -> tinker.TrainingClient:
    made: tinker.TrainingClient = await client.create_lora_training_client(str(server.model), rank=4)
    return made


async def test_no_sequence_ids_and_short_prompt_logprobs(client: tinker.ServiceClient, older: TinkerServer) -> None:
    sampler = await client.create_sampling_client(base_model=str(older.model))
    with pytest.raises(AssertionError, match="sample_sequence_ids"):
        await sampler.sample(PROMPT, 1, ONE_TOKEN)
    accept_missing_sequence_ids()
    accept_missing_sequence_ids()
    named = await sampler.sample(PROMPT, 2, ONE_TOKEN)
    assert len({sequence.sequence_id for sequence in named.sequences}) == 2, NO_SEQUENCE_IDS
    assert len(await sampler.compute_logprobs(PROMPT)) == 3, SHORT_PROMPT_LOGPROBS
    bridge = await bridged(client).create_sampling_client_async(base_model=str(older.model))
    first, *others = await bridge.compute_logprobs_async(PROMPT)
    assert first is None
    assert len(others) == 3


async def test_no_create_from_state(client: tinker.ServiceClient, older: TinkerServer) -> None:
    saved = await (await fresh(client, older)).save_state("here")
    for create in (client.create_training_client_from_state, client.create_training_client_from_state_with_optimizer):
        with pytest.raises(tinker.UnprocessableEntityError):
            await create(saved.path)
    older.forget()
    bridge = bridged(client)
    for optimizer, restore in (
        (False, bridge.create_training_client_from_state_async),
        (True, bridge.create_training_client_from_state_with_optimizer_async),
    ):
        await restore(saved.path)
        assert [load["optimizer"] for load in attempts(older, "load_weights")][-1] is optimizer, NO_CREATE_FROM_STATE
        with pytest.raises(tinker.NotFoundError):
            await restore(saved.path.replace("here", "nowhere"))
    assert len(attempts(older, "create_model")) == 2, "one was made in vain"


async def test_bare_sampler_paths_and_late_missing_samplers(client: tinker.ServiceClient, older: TinkerServer) -> None:
    training = await fresh(client, older)
    assert (await training.save_weights_for_sampler("one")).path.count("/") == 3, BARE_SAMPLER_PATHS
    bridge = bridged(client)
    lora = await bridge.create_lora_training_client_async(str(older.model), rank=4)
    path = (await (await lora.save_weights_for_sampler_async("two")).result_async()).path
    assert path.endswith("/sampler_weights/two")
    await bridge.create_sampling_client_async(path)
    await client.create_sampling_client(path.replace("two", "nowhere"))
    with pytest.raises(tinker.NotFoundError, match="cannot be sampled"):
        await bridge.create_sampling_client_async(path.replace("two", "nowhere"))
    assert LATE_MISSING_SAMPLER in DIFFERENCES


async def test_bare_failures(client: tinker.ServiceClient, older: TinkerServer) -> None:
    older.plan(Fault("optim_step", "fail", times=2))
    with pytest.raises(ValueError, match="the request failed"):
        await (await fresh(client, older)).optim_step(types.AdamParams())
    lora = await bridged(client).create_lora_training_client_async(str(older.model), rank=4)
    stepping = await lora.optim_step_async(types.AdamParams())
    with pytest.raises(tinker.RequestFailedError, match="the request failed"):
        await stepping.result_async()
    assert BARE_FAILURES in DIFFERENCES


async def test_only_a_server_that_names_its_models_and_no_more_is_described(
    client: tinker.ServiceClient, service: TinkerServer
) -> None:
    lines = describe(await client.create_rest_client().get_server_capabilities())
    assert lines[1:] == list(UNBRIDGED)
    assert all(difference.name in lines[0] for difference in DIFFERENCES)
    other = tinker.ServiceClient(base_url=service.url, api_key=KEY)
    assert not describe(await other.create_rest_client().get_server_capabilities())


def older_run(folder: Path, older: TinkerServer, observer: KillAt) -> Child:
    return service_run(folder, older, "renderer_name=qwen3_instruct", observer=observer)


def test_a_run_on_such_a_server_comes_to_the_same_and_resumes(
    tmp_path: Path, older: TinkerServer, service: TinkerServer, undisturbed_child: Child
) -> None:
    """Killed in Rollout of batch 1; its sampler is gone by the time it resumes, and then in TrainStep."""
    rollout = KillAt(ENTERED, len(CYCLE) + CYCLE.index(State.ROLLOUT))
    others = set(older.checkpoints())
    assert run_unseen(older_run(tmp_path, older, rollout)) == -9
    sampler = max(path for path in set(older.checkpoints()) - others if "/sampler_weights/" in path)
    older.expire(sampler)
    assert run_unseen(older_run(tmp_path, older, KillAt(ENTERED, 1))) == -9
    child = older_run(tmp_path, older, KillAt("never"))
    assert run_unseen(child) == 0, child.output
    gone = log_lines(child, "the sampler is gone, saving it again from the weights")
    assert [line["sampler_path"] for line in gone] == [sampler]
    found, expected = outcome(child, older), outcome(undisturbed_child, service)
    assert OWNER.search(sampler)
    for name in ("files", "metrics", "weights"):
        assert found[name] == expected[name]
