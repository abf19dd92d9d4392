"""Saves, restores and what is said of them, as the checkpoint ledger relies on them."""

import asyncio

import pytest
import tinker
from contract.exchange import CLOSE, Party, datums, distance, forward_backward, score, step, unused_name

CROSS_ENTROPY = "cross_entropy"
DATA = datums(CROSS_ENTROPY)
UNWEIGHTED = datums(CROSS_ENTROPY, weight=0.0)
TAKEN_SECONDS = 3.0
"""The SDK asks again for minutes where a name is taken: after this long it is known not to have been given."""


async def test_a_restore_with_the_optimizer_goes_on_exactly_and_one_without_does_not(party: Party) -> None:
    client = await party.trained()
    await step(client, DATA)
    saved = await (await client.save_state_async(unused_name())).result_async()
    restored = await party.service.create_training_client_from_state_with_optimizer_async(saved.path)
    bare = await party.service.create_training_client_from_state_async(saved.path)
    start, same, also_same = [await step(one, DATA) for one in (client, restored, bare)]
    assert distance(start, same) < CLOSE
    assert distance(start, also_same) < CLOSE
    on, again, otherwise = [await step(one, DATA) for one in (client, restored, bare)]
    assert distance(on, again) < CLOSE
    assert distance(on, otherwise) > 5 * CLOSE


async def test_a_sampler_is_the_weights_that_it_was_saved_from(party: Party) -> None:
    client = await party.trained()
    sampler = await party.sampler(client)
    expected = await score(sampler)
    assert distance(await forward_backward(client, UNWEIGHTED, CROSS_ENTROPY), expected) < CLOSE
    base = await party.service.create_sampling_client_async(base_model=party.base_model)
    assert distance(await score(base), expected) > 10 * CLOSE


async def test_an_older_sampler_and_the_weights_being_trained_leave_each_other_alone(party: Party) -> None:
    client = await party.fresh()
    older = await party.sampler(client)
    before = await score(older)
    await step(client, DATA)
    trained = await forward_backward(client, UNWEIGHTED, CROSS_ENTROPY)
    assert distance(await score(older), before) < CLOSE
    assert distance(await forward_backward(client, UNWEIGHTED, CROSS_ENTROPY), trained) < CLOSE


@pytest.mark.parametrize("save", ["save_state_async", "save_weights_for_sampler_async"])
async def test_a_name_that_is_taken_keeps_what_it_has(party: Party, save: str) -> None:
    """The ledger then adopts what is there: a run saves under one name the same weights only."""
    client, name = await party.fresh(), unused_name()
    path = (await (await getattr(client, save)(name)).result_async()).path
    with pytest.raises((tinker.ConflictError, TimeoutError)):
        async with asyncio.timeout(TAKEN_SECONDS):
            await (await getattr(client, save)(name)).result_async()
    if save == "save_state_async":
        await party.service.create_rest_client().get_weights_info_by_tinker_path(path)
    else:
        await party.service.create_sampling_client_async(path)


async def test_a_path_is_the_clients_owner_the_section_and_the_name(party: Party) -> None:
    """The ledger looks there for a save whose reply was lost. A lifetime and our metadata are taken with it."""
    client, name = await party.fresh(), unused_name()
    owner = (await client.get_info_async()).model_id
    metadata = {"orchestrator_run_id": "run", "batch": "3"}
    state = await (await client.save_state_async(name, 3600, user_metadata=metadata)).result_async()
    sampler = await (await client.save_weights_for_sampler_async(name, 3600, metadata)).result_async()
    assert state.path.partition("://")[2] == f"{owner}/weights/{name}"
    assert sampler.path.partition("://")[2] == f"{owner}/sampler_weights/{name}"


async def test_a_checkpoint_is_known_until_it_is_deleted(party: Party) -> None:
    client, rest = await party.fresh(), party.service.create_rest_client()
    path = (await (await client.save_state_async(unused_name())).result_async()).path
    info = await rest.get_weights_info_by_tinker_path(path)
    assert (info.base_model, info.lora_rank, info.is_lora) == (party.base_model, party.lora_rank, True)
    await rest.delete_checkpoint_from_tinker_path_async(path)
    with pytest.raises(tinker.NotFoundError):
        await rest.get_weights_info_by_tinker_path(path)
    with pytest.raises(tinker.NotFoundError):
        await rest.delete_checkpoint_from_tinker_path_async(path)
    for create in (
        party.service.create_training_client_from_state_with_optimizer_async,
        party.service.create_training_client_from_state_async,
    ):
        with pytest.raises(tinker.NotFoundError):
            await create(path)


async def test_a_saved_sampler_can_be_deleted(party: Party) -> None:
    client = await party.fresh()
    path = (await (await client.save_weights_for_sampler_async(unused_name())).result_async()).path
    await party.service.create_rest_client().delete_checkpoint_from_tinker_path_async(path)
    with pytest.raises(tinker.NotFoundError):
        await party.service.create_sampling_client_async(path)
