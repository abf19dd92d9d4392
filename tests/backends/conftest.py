"""Embedded services over small models, closed at the end of each test."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.model_directories import make_llama, make_qwen3
from backends.service_factory import MakeService

from orchestrator.backends.local.service import LocalServiceClient
from orchestrator.config import LocalConfig


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products on several threads are slow where other work shares the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3(tmp_path_factory.mktemp("models") / "qwen3")


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make_service(tmp_path: Path, cache: Path) -> Iterator[MakeService]:
    """Makes embedded services, by default over ``tmp_path/local`` and one PyTorch thread."""
    made: list[LocalServiceClient] = []

    def make(storage: Path = tmp_path / "local", **options: Any) -> LocalServiceClient:
        service = LocalServiceClient(
            storage, options=LocalConfig(**options), renderer_name="qwen3_instruct", cache=cache
        )
        made.append(service)
        return service

    yield make
    for service in made:
        service.close()
