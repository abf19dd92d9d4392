from pathlib import Path

import chz
import pytest
import tinker

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.backends.service import make_backend
from orchestrator.config import Config
from orchestrator.errors import ConfigError

LOCAL = Config(backend="local")


def test_each_backend_is_made_without_asking_anything_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_backend(LOCAL, tmp_path).service, LocalServiceClient)
    made: list[str | None] = []
    monkeypatch.setattr(tinker, "ServiceClient", lambda base_url, display_name: made.append(base_url))
    config = Config(backend="tinker", base_url="http://127.0.0.1:1")
    make_backend(config, tmp_path, environ={"TINKER_API_KEY": "tml-a-key-that-is-never-sent"})
    assert made == ["http://127.0.0.1:1"]


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        ({"backend": "tinker"}, {}, "TINKER_API_KEY is not set"),
        ({"backend": "tinker", "lora_rank": 0}, {"TINKER_API_KEY": "tml-x"}, "lora_rank=0"),
        ({"backend": "local", "model_name": "Qwen/Qwen3-8B"}, {}, "nothing is downloaded"),
    ],
)
def test_a_backend_that_cannot_be_is_a_configuration_error(
    tmp_path: Path, options: dict[str, object], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_backend(chz.replace(Config(), **options), tmp_path, environ=environ)


async def test_the_tokenizer_is_the_models_own(tmp_path: Path, llama: Path) -> None:
    config = chz.replace(LOCAL, model_name=str(llama))
    backend = make_backend(config, tmp_path)
    tokenizer = await backend.load_tokenizer()
    client = await backend.service.create_lora_training_client_async(config.model_name, rank=2)
    assert client.get_tokenizer() is tokenizer
    assert tokenizer.encode("<|im_end|>", add_special_tokens=False) == [tokenizer.eos_token_id]


async def test_a_directory_that_holds_no_weights_is_a_bad_request(tmp_path: Path, llama: Path) -> None:
    (tmp_path / "config.json").write_bytes((llama / "config.json").read_bytes())
    backend = make_backend(chz.replace(LOCAL, model_name=str(tmp_path)), tmp_path)
    with pytest.raises(tinker.BadRequestError, match="cannot be loaded"):
        await backend.load_tokenizer()
