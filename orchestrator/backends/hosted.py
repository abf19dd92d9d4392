"""Connecting to the hosted service, or to a server like it, without holding up the event loop."""

import asyncio
import threading
from concurrent.futures import Future

import tinker

from orchestrator.backends.deadline import reply_within
from orchestrator.config import Config
from orchestrator.errors import BackendError, ConfigError


async def connect(config: Config, client: tinker.ServiceClient) -> None:
    """Opens the session that every other request of ``client`` belongs to.

    Raises:
        ConfigError: the key cannot be one, or the service does not know it.
        BackendError: the service cannot be reached, or refuses the session.
    """
    address = config.base_url or "the service"
    try:
        await reply_within(config.backend_timeout_seconds, _in_thread(client), f"connecting to {address}")
    except (tinker.AuthenticationError, tinker.PermissionDeniedError) as error:
        raise ConfigError(
            f"TINKER_API_KEY: {address} refuses the key ({error.status_code}). Set a key that is valid there"
        ) from error
    except tinker.APIError as error:
        raise BackendError(f"connecting to {address}: {error}. The same command tries again") from error
    except tinker.TinkerError as error:
        raise ConfigError(f"TINKER_API_KEY: {error}") from error


async def _in_thread(client: tinker.ServiceClient) -> None:
    """The SDK connects in the thread that first asks, for minutes where there is no answer; later it never blocks.

    The thread is a daemon's: unlike one of the loop's own, the process does not wait for it when it gives up.
    """
    done: Future[None] = Future()

    def open_sessions() -> None:
        try:
            client.holder.get_session_id()
            client.create_rest_client()
        except Exception as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    done.set_running_or_notify_cancel()  # from here on it cannot be cancelled, so the thread may always set it
    threading.Thread(target=open_sessions, name="connecting", daemon=True).start()
    await asyncio.wrap_future(done)
