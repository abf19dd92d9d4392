"""How the clients of agents find this machine past a proxy that cannot."""

import os
from urllib.parse import urlsplit

LOOPBACK = ("127.0.0.1", "localhost")


def bypass_proxies(*addresses: str) -> None:
    """Adds loopback and the hosts of ``addresses`` to ``NO_PROXY`` and ``no_proxy`` here and in child processes.

    The clients of agents obey ``HTTP_PROXY``, and a proxy elsewhere cannot reach this machine's loopback. Clients
    differ in which of the two names they read, so both get the entries of both.
    """
    names = ("NO_PROXY", "no_proxy")
    entries = [entry.strip() for name in names for entry in os.environ.get(name, "").split(",")]
    hosts = filter(None, [*entries, *LOOPBACK, *(urlsplit(address).hostname for address in addresses)])
    # A star means every host, but to some clients only where it stands alone.
    value = "*" if "*" in entries else ",".join(dict.fromkeys(hosts))
    for name in names:
        os.environ[name] = value
