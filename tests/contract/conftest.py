"""Whom the contract is held against: the embedded backend and the SDK against the test servers, or a server given.

pytest tests/contract --base-url=http://127.0.0.1:8000 --base-model=MODEL      with TINKER_API_KEY in the environment
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from backends.model_directories import make_llama
from contract.declared import TOLERATED
from contract.exchange import Party
from tinker_server import KEY, TinkerServer

from orchestrator.backends.service import Backend, make_backend
from orchestrator.config import Config

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--base-url", help="hold the contract against the server at this address")
    parser.addoption("--base-model", help="the model that it is to train")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "party" in metafunc.fixturenames:
        given = metafunc.config.getoption("--base-url", default=None)
        parties = ["given"] if given else ["embedded", "http", "http-older"]
        metafunc.parametrize("party", parties, indirect=True, scope="module")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Declares what may fail against a server that was given."""
    here = [item for item in items if isinstance(item, pytest.Function) and item.path.parent == FOLDER]
    if config.getoption("--base-url", default=None):
        for item in here:
            if item.originalname in TOLERATED:
                item.add_marker(pytest.mark.xfail(reason=TOLERATED[item.originalname], strict=False))


@pytest.fixture(scope="module")
def party(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Party]:
    """A backend as a run has it, connected."""
    with pytest.MonkeyPatch.context() as patch:
        config = Config(backend="tinker", lora_rank=4)
        folder = tmp_path_factory.mktemp("contract")
        if request.param == "embedded":
            model = str(make_llama(folder / "model"))
            config = Config(backend="local", model_name=model, lora_rank=4)
        elif request.param == "given":
            url, model = (request.config.getoption(name) for name in ("--base-url", "--base-model"))
            assert model, "--base-url needs --base-model"
            config = Config(backend="tinker", base_url=url, model_name=model, lora_rank=4)
        else:
            server: TinkerServer = request.getfixturevalue("tinker_process")
            server = server.older if request.param == "http-older" else server
            patch.setenv("TINKER_API_KEY", KEY)
            config = Config(backend="tinker", base_url=server.url, model_name=str(server.model), lora_rank=4)
        backend = make_backend(config, folder, environ=os.environ)
        asyncio.run(_connected(backend))
        yield Party(backend.service, config.model_name, config.lora_rank)


async def _connected(backend: Backend) -> None:
    await backend.connect()
