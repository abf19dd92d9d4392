"""The type of the fixture that makes embedded services."""

from collections.abc import Callable

from orchestrator.backends.local.service import LocalServiceClient

MakeService = Callable[..., LocalServiceClient]
