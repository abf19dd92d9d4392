import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tinker
import torch
from backends.service_factory import MakeService

from orchestrator.backends.local.checkpoints import CheckpointStore
from orchestrator.backends.local.model import AdapterSpec

WEIGHTS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(())}
ARGUMENTS: dict[str, Any] = {
    "base_model": "tiny",
    "base_fingerprint": "f",
    "adapter": AdapterSpec(rank=2),
    "weights": WEIGHTS,
}


class Clock:
    """Unix seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, now=Clock())
    state = {"step": torch.tensor(3), "exp_avg.a": torch.rand(2, 3)}
    path = store.save("weights", "000004", optimizer_state=state, user_metadata={"k": "v"}, **ARGUMENTS)
    assert path == "local://run/weights/000004"
    for name in (path, "tinker://run/weights/000004", str(tmp_path / "run/weights/000004")):
        checkpoint = CheckpointStore(tmp_path).find(name)
        assert checkpoint.metadata.adapter == AdapterSpec(rank=2)
        assert (checkpoint.metadata.created_at, checkpoint.metadata.user_metadata) == (1_000.0, {"k": "v"})
        assert all(torch.equal(tensor, WEIGHTS[key]) for key, tensor in checkpoint.weights().items())
        assert all(torch.equal(tensor, state[key]) for key, tensor in checkpoint.optimizer_state().items())
    assert sorted(file.name for file in (tmp_path / "run/weights/000004").iterdir()) == [
        "metadata.json",
        "model.safetensors",
        "optimizer.safetensors",
    ]


def test_a_taken_name_is_a_conflict_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save("sampler_weights", "x", **ARGUMENTS)
    with pytest.raises(tinker.ConflictError) as refused:
        store.save("sampler_weights", "x", **ARGUMENTS)
    assert (refused.value.status_code, refused.value.body) == (409, {"path": path})
    store.save("weights", "x", **ARGUMENTS)
    changed = {**ARGUMENTS, "weights": {"a": torch.zeros(1)}}
    store.save("sampler_weights", "x", overwrite=True, **changed)
    assert list(store.find(path).weights()) == ["a"]


def test_an_expired_checkpoint_is_gone_and_its_name_free(tmp_path: Path) -> None:
    clock = Clock()
    store = CheckpointStore(tmp_path, now=clock)
    path = store.save("weights", "x", ttl_seconds=60, **ARGUMENTS)
    kept = store.save("weights", "kept", **ARGUMENTS)
    clock.now += 59.9
    assert store.find(path).metadata.expires_at == 1_060.0
    clock.now += 0.1
    for refused in (store.find, store.delete):
        with pytest.raises(tinker.NotFoundError, match="1060"):
            refused(path)
    assert store.save("weights", "x", ttl_seconds=60, **ARGUMENTS) == path
    clock.now += 61
    reopened = CheckpointStore(tmp_path, now=clock)
    assert [directory.name for directory in (tmp_path / "run/weights").iterdir()] == ["kept"]
    assert reopened.find(kept)


def test_a_deleted_checkpoint_is_gone_and_cannot_be_deleted_twice(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    path = store.save("weights", "x", **ARGUMENTS)
    store.delete(path)
    for refused in (store.find, store.delete):
        with pytest.raises(tinker.NotFoundError, match="run/weights/x"):
            refused(path)
    assert list((tmp_path / "run/weights").iterdir()) == []


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_damaged_checkpoint_counts_as_gone_and_its_name_as_free(
    tmp_path: Path, damage: Callable[[Path], None], file: str
) -> None:
    store = CheckpointStore(tmp_path)
    arguments = {**ARGUMENTS, "optimizer_state": {"step": torch.tensor(3)}}
    older = store.save("weights", "older", **arguments)
    path = store.save("weights", "x", **arguments)
    damage(tmp_path / "run/weights/x" / file)
    reopened = CheckpointStore(tmp_path)
    with pytest.raises(tinker.NotFoundError, match=f"damaged.*{file}"):
        reopened.find(path)
    assert reopened.find(older).weights()
    assert reopened.save("weights", "x", **arguments) == path
    assert torch.equal(reopened.find(path).weights()["a"], WEIGHTS["a"])
    damage(tmp_path / "run/weights/x" / file)
    reopened.delete(path)
    assert [directory.name for directory in (tmp_path / "run/weights").iterdir()] == ["older"]


@pytest.mark.parametrize("metadata", [None, b"", b'{"base_model": "tiny"', b"{}", b"[]", b"7", b"\xff"])
def test_metadata_that_cannot_be_read_is_a_damaged_checkpoint_and_stops_nothing_else(
    tmp_path: Path, metadata: bytes | None
) -> None:
    store = CheckpointStore(tmp_path)
    kept, path = (store.save("weights", name, **ARGUMENTS) for name in ("kept", "x"))
    file = tmp_path / "run/weights/x/metadata.json"
    file.unlink()
    if metadata is not None:
        file.write_bytes(metadata)
    (tmp_path / "run/weights/.unfinished-1").mkdir()
    reopened = CheckpointStore(tmp_path)
    assert {directory.name for directory in (tmp_path / "run/weights").iterdir()} == {"kept", "x"}
    assert reopened.find(kept)
    with pytest.raises(tinker.NotFoundError, match=r"damaged.*metadata\.json"):
        reopened.find(path)
    assert reopened.save("weights", "x", **ARGUMENTS) == path
    assert reopened.find(path)


def test_a_stray_file_among_the_checkpoints_is_none_of_them(tmp_path: Path) -> None:
    path = CheckpointStore(tmp_path).save("weights", "x", **ARGUMENTS)
    for place in ("run", "run/weights"):
        (tmp_path / place / ".DS_Store").write_bytes(b"\0")
    store = CheckpointStore(tmp_path)
    assert store.find(path)
    with pytest.raises(tinker.NotFoundError):
        store.find(str(tmp_path / "run/weights/.DS_Store"))


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b"])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path)
    with pytest.raises(tinker.BadRequestError, match="letters"):
        store.save("weights", name, **ARGUMENTS)
    with pytest.raises(tinker.NotFoundError):
        store.find(f"local://run/weights/{name}")


SAVE_FOR_EVER = """
import sys, torch
from pathlib import Path
from orchestrator.backends.local.checkpoints import CheckpointStore
from orchestrator.backends.local.model import AdapterSpec
store = CheckpointStore(Path(sys.argv[1]))
for index in range(10**9):
    store.save("weights", "x" if index else "first", base_model="tiny", base_fingerprint="f",
        adapter=AdapterSpec(rank=0), weights={"a": torch.full((400_000,), float(index))}, overwrite=True)
    if index == 1:
        print("saving", flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_whole_checkpoints_only(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "saving\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    left = list((tmp_path / "run/weights").iterdir())
    store = CheckpointStore(tmp_path)
    whole = list((tmp_path / "run/weights").iterdir())
    assert {directory.name for directory in whole} <= {"first", "x"}
    assert {directory.name for directory in whole} == {d.name for d in left if not d.name.startswith(".")}
    for directory in whole:
        values = store.find(str(directory)).weights()["a"]
        assert len(values) == 400_000
        assert bool((values == values[0]).all())


async def test_weights_of_another_base_model_are_refused_and_both_are_named(
    make_service: MakeService, llama: Path, qwen3: Path
) -> None:
    service = make_service()
    client = await service.create_lora_training_client_async(str(llama), rank=0)
    path = (await (await client.save_state_async("x")).result_async()).path
    with pytest.raises(tinker.BadRequestError, match=f"{llama}.*{qwen3}"):
        await service.create_training_client_from_state_async(path, base_model=str(qwen3))
    with pytest.raises(tinker.BadRequestError, match="neither 'tiny' nor a directory"):
        await service.create_sampling_client_async(base_model="Qwen/Qwen3-8B")


async def test_the_clients_save_find_load_and_delete(make_service: MakeService, tmp_path: Path) -> None:
    service, rest = make_service(), make_service().create_rest_client()
    client = await service.create_lora_training_client_async("tiny", rank=8, train_unembed=False)
    sampler_path = (await (await client.save_weights_for_sampler_async("a", ttl_seconds=60)).result_async()).path
    state_path = (await (await client.save_state_async("a", user_metadata={"run": "r"})).result_async()).path
    info = await client.get_info_async()
    assert sampler_path == f"local://{info.model_id}/sampler_weights/a"
    found = await rest.get_weights_info_by_tinker_path(f"tinker://{info.model_id}/weights/a")
    assert (found.base_model, found.is_lora, found.lora_rank, found.train_unembed) == ("tiny", True, 8, False)
    again = await client.save_state_async("a")
    with pytest.raises(tinker.ConflictError):
        await again.result_async()
    with pytest.raises(tinker.BadRequestError, match="no optimizer state"):
        await service.create_training_client_from_state_with_optimizer_async(sampler_path)
    other_run = make_service(tmp_path / "another")
    directory = str(tmp_path / "local" / info.model_id / "weights" / "a")
    restored = await other_run.create_training_client_from_state_async(directory)
    assert (await restored.get_info_async()).lora_rank == 8
    await rest.delete_checkpoint_from_tinker_path_async(state_path)
    with pytest.raises(tinker.NotFoundError):
        await rest.get_weights_info_by_tinker_path(state_path)
    with pytest.raises(tinker.NotFoundError):
        await service.create_training_client_from_state_with_optimizer_async(state_path)
    metadata = json.loads((tmp_path / "local" / info.model_id / "sampler_weights/a/metadata.json").read_text())
    assert metadata["expires_at"] - metadata["created_at"] == 60
