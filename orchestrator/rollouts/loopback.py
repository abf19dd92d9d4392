"""How the clients of agents find this machine past a proxy that cannot."""

import os

LOOPBACK = ("127.0.0.1", "localhost")


def bypass_proxies() -> None:
    """Adds the loopback addresses to ``NO_PROXY`` and ``no_proxy`` of this process and its children.

    The clients of agents obey ``HTTP_PROXY``, and a proxy elsewhere cannot reach this machine's loopback. Clients
    differ in which of the two names they read, so both get the entries of both.
    """
    names = ("NO_PROXY", "no_proxy")
    entries = [entry.strip() for name in names for entry in os.environ.get(name, "").split(",")]
    # A star means every host, but to some clients only where it stands alone.
    value = "*" if "*" in entries else ",".join(dict.fromkeys([*filter(None, entries), *LOOPBACK]))
    for name in names:
        os.environ[name] = value
