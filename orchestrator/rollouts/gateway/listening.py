"""Where a gateway listens: claiming a port that nobody else holds."""

import socket
from dataclasses import dataclass, replace

from orchestrator.errors import GatewayError

EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here: it is recognised
"""Hosts that cannot be called, with the one that reaches them from this machine."""
BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Binding:
    """The host and port of a listening socket; port 0 before it is chosen."""

    host: str
    port: int

    @property
    def local_host(self) -> str:
        """The host under which this machine reaches it."""
        return EVERY_INTERFACE.get(self.host, self.host)

    @property
    def address(self) -> str:
        """E.g. ``http://127.0.0.1:4000``."""
        host = f"[{self.local_host}]" if ":" in self.local_host else self.local_host
        return f"http://{host}:{self.port}"

    def listen(self) -> tuple[socket.socket, "Binding"]:
        """A listening socket that no other process shares, and where it is.

        The port of a gateway that has just gone is taken over, one that somebody listens on is not, on any system.

        Raises:
            GatewayError: another process holds the port, or there is no such host here.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listener = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except socket.gaierror as error:
            raise GatewayError(f"gateway_host={self.host}: no such host ({error.strerror})") from error
        except OSError as error:
            raise GatewayError(
                f"gateway_port={self.port}: another process listens on {self.host}:{self.port} ({error.strerror}). "
                "Stop it, or set gateway_port to a free port or to 0 for any; the same command then resumes."
            ) from error
        return listener, replace(self, port=int(listener.getsockname()[1]))
