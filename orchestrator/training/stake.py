"""What is asked of a training client, and what its failure means for it: told apart here, dealt with by the machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.backends.retries import Loss, loss_of
from orchestrator.errors import ClientLostError
from orchestrator.telling import told


@contextmanager
def client_at_stake(what: str) -> Iterator[None]:
    """While the context is entered a training client is asked for something, which is ``what`` in words.

    Raises:
        ClientLostError: it failed in a way after which the client cannot be relied on, and another one may succeed;
            every other error goes on as it is. The message quotes nothing of the service's.
    """
    try:
        yield
    except Exception as error:
        if loss_of(error) is Loss.CLIENT:
            raise ClientLostError(f"{what}: {told(error)}") from error
        raise
