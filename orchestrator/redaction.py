"""Keeps secrets out of everything that is written: values of key-like environment variables, run keys, those added."""

import os
import re
import secrets
from collections.abc import Mapping

SECRET_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PAT")
MIN_SECRET_LENGTH = 8
"""Shorter values of environment variables are placeholders; replacing them would garble ordinary text."""
REPLACEMENT = "[redacted]"
RUN_KEY_BYTES = 24
RUN_KEY = rf"sk-[0-9a-f]{{{2 * RUN_KEY_BYTES}}}"
"""The form of a run's own keys: processes that never were told one know it when an agent quotes it."""


def new_run_key() -> str:
    """A random bearer key that every redactor knows by its form."""
    return f"sk-{secrets.token_hex(RUN_KEY_BYTES)}"


class Redactor:
    """Replaces secrets wherever they occur in a text. One object may be shared between threads."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Knows the values of the variables of ``environ`` whose names end in one of ``SECRET_SUFFIXES``."""
        self._secrets = {
            value
            for name, value in environ.items()
            if name.upper().endswith(SECRET_SUFFIXES) and len(value) >= MIN_SECRET_LENGTH
        }
        self._pattern = self._compile()

    def add(self, secret: str) -> None:
        """Also replaces ``secret``, of any length but 0, from now on."""
        if secret:
            self._secrets.add(secret)
            self._pattern = self._compile()

    def __call__(self, text: str) -> str:
        """``text`` without the secrets."""
        return self._pattern.sub(REPLACEMENT, text)

    def _compile(self) -> re.Pattern[str]:
        # Longest first: where one secret begins another, the rest of the longer one must not stay.
        known = (re.escape(secret) for secret in sorted(self._secrets, key=len, reverse=True))
        return re.compile("|".join([*known, RUN_KEY]))
