"""The type of the ``make_service`` fixture."""

from collections.abc import Callable

from orchestrator.backends.local.service import LocalServiceClient

MakeService = Callable[..., LocalServiceClient]
