import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tinker
import torch
from backends.service_factory import MakeService
from tinker import types
from tinker_cookbook import renderers

from orchestrator.backends.local.clients import LocalSamplingClient
from orchestrator.backends.local.model import AdapterSpec, LanguageModel, Policy, fingerprint
from orchestrator.backends.local.sampling import compute_logprobs
from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.backends.local.tiny import make_tokenizer, tiny_directory
from orchestrator.backends.local.warm_start import WarmStart
from orchestrator.config import LocalConfig
from orchestrator.errors import ConfigError

TRANSCRIPTS = [
    [{"role": "user", "content": f"say {digit}"}, {"role": "assistant", "content": f"{digit}"}] for digit in range(10)
]


def transcripts() -> list[list[dict[str, str]]]:
    return TRANSCRIPTS


def no_transcripts() -> list[list[dict[str, str]]]:
    return []


def set_steps(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    monkeypatch.setattr("orchestrator.backends.local.warm_start.STEPS", steps)


def test_the_tokenizer_takes_every_character_and_each_special_token_as_one() -> None:
    tokenizer = make_tokenizer()
    text = "<|im_start|>user\nHello,  World! \t{'x': 1}<|im_end|>"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text) - len("<|im_start|><|im_end|>") + 2
    assert tokenizer.decode(tokenizer.encode("é", add_special_tokens=False)) == "<|unknown|>"


@pytest.mark.parametrize(
    ("renderer_name", "reply"),
    [("qwen3_instruct", "4 it is<|im_end|>"), ("role_colon", " 4 it is\n\nUser:")],
)
def test_renderers_read_back_what_the_model_is_to_say(renderer_name: str, reply: str) -> None:
    tokenizer = make_tokenizer()
    renderer = renderers.get_renderer(renderer_name, tokenizer)
    prompt = renderer.build_generation_prompt([renderers.Message(role="user", content="say 4")]).to_ints()
    assert tokenizer.unk_token_id not in prompt
    message, termination = renderer.parse_response(tokenizer.encode(reply, add_special_tokens=False))
    assert (message["content"], termination.is_clean) == ("4 it is", True)


def test_a_warm_start_teaches_the_assistants_replies_and_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_steps(monkeypatch, 100)
    warm_start = WarmStart.load(f"{__name__}:transcripts", "qwen3_instruct")
    directory = tiny_directory(tmp_path, warm_start, num_threads=1)
    made_at = directory.stat().st_mtime_ns
    assert tiny_directory(tmp_path, warm_start, num_threads=1) == directory
    assert directory.stat().st_mtime_ns == made_at
    model = LanguageModel(directory, name="tiny", dtype=torch.float32)
    text = "<|im_start|>user\nsay 4<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"
    scores = compute_logprobs(Policy(model, AdapterSpec(0), {}), model.tokenizer.encode(text, add_special_tokens=False))
    assert [score for score in scores[-2:] if score is None or score < -0.2] == []
    assert 80_000 < sum(weight.numel() for weight in model.fresh_weights(AdapterSpec(0), 0).values()) < 120_000


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_cached_model_that_cannot_be_loaded_is_made_anew(tmp_path: Path, file: str) -> None:
    directory = tiny_directory(tmp_path, None, num_threads=1)
    identity = fingerprint(directory)
    (directory / file).write_bytes(b"")
    assert tiny_directory(tmp_path, None, num_threads=1) == directory
    assert fingerprint(directory) == identity
    assert LanguageModel(directory, name="tiny", dtype=torch.float32).tokenizer.encode("a")
    assert list(tmp_path.iterdir()) == [directory]


def test_a_made_model_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync, rename = os.fsync, Path.rename
    before_the_name: list[set[int]] = []

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def note_rename(self: Path, target: Path) -> Path:
        before_the_name.append(set(synced))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    directory = tiny_directory(tmp_path, None, num_threads=1)
    assert {path.stat().st_ino for path in (directory, *directory.iterdir())} <= before_the_name[-1]
    assert tmp_path.stat().st_ino in synced


async def test_a_run_keeps_the_built_in_model_that_its_checkpoints_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_steps(monkeypatch, 2)

    def make(storage: Path, cache: Path, warm_start: str | None) -> LocalServiceClient:
        options = LocalConfig(warm_start=warm_start)
        return LocalServiceClient(storage, options=options, renderer_name="qwen3_instruct", cache=cache)

    async def scores(sampler: LocalSamplingClient) -> list[float | None]:
        return await sampler.compute_logprobs_async(types.ModelInput.from_ints([10, 11, 12]))

    first = make(tmp_path / "local", tmp_path / "cache", f"{__name__}:transcripts")
    client = await first.create_lora_training_client_async("tiny", rank=4)
    path = (await (await client.save_state_async("a")).result_async()).path
    expected = await scores(await first.create_sampling_client_async(path))
    first.close()
    shutil.move(tmp_path / "local", tmp_path / "moved")
    monkeypatch.setattr("orchestrator.backends.local.tiny.version", lambda package: "99")
    elsewhere = make(tmp_path / "moved", tmp_path / "empty-cache", None)
    await elsewhere.create_training_client_from_state_with_optimizer_async(path)
    assert await scores(await elsewhere.create_sampling_client_async(path)) == expected
    elsewhere.close()
    assert not (tmp_path / "empty-cache").exists()
    assert sorted(directory.name for directory in (tmp_path / "moved").iterdir()) == ["base", "run"]


async def test_a_kept_model_that_is_damaged_is_named(make_service: MakeService, tmp_path: Path) -> None:
    await make_service().get_tokenizer_async("tiny")
    (tmp_path / "local/base/tiny/model.safetensors").write_bytes(b"")
    with pytest.raises(tinker.BadRequestError, match="local/base/tiny cannot be loaded"):
        await make_service().get_tokenizer_async("tiny")


def test_everything_that_decides_the_weights_is_in_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_steps(monkeypatch, 2)
    other = [*TRANSCRIPTS[:-1], [*TRANSCRIPTS[-1][:-1], {"role": "assistant", "content": "ten"}]]
    starts = [
        None,
        WarmStart(TRANSCRIPTS, "qwen3_instruct"),
        WarmStart(TRANSCRIPTS, "role_colon"),
        WarmStart(other, "role_colon"),
    ]
    directories = [tiny_directory(tmp_path, start, num_threads=1) for start in starts]
    assert len(set(directories)) == len({fingerprint(directory) for directory in directories}) == len(starts)


MAKE = """
import sys
from pathlib import Path
from orchestrator.backends.local.model import fingerprint
from orchestrator.backends.local.tiny import tiny_directory
print("ready", flush=True)
sys.stdin.readline()
directory = tiny_directory(Path(sys.argv[1]), None, num_threads=1)
print(directory.name, fingerprint(directory))
"""


def test_two_processes_that_make_the_model_at_once_get_the_same_one(tmp_path: Path) -> None:
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for maker in makers:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "ready\n"
    for maker in makers:
        assert maker.stdin is not None
        maker.stdin.write("go\n")
        maker.stdin.flush()
    found = [maker.communicate(timeout=60)[0].splitlines()[-1] for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0]
    assert found[0] == found[1]
    assert [directory.name for directory in tmp_path.iterdir()] == [found[0].split()[0]]


@pytest.mark.parametrize(
    "target", [f"{__name__}:no_transcripts", f"{__name__}:nothing", "no_such_module:x", "nonsense"]
)
def test_a_warm_start_that_gives_no_transcripts_is_a_configuration_error(target: str) -> None:
    with pytest.raises(ConfigError, match=r"local\.warm_start="):
        WarmStart.load(target, "qwen3_instruct")
