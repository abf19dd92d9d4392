"""Keeps secrets out of everything that is written: the values of key-like environment variables, and those added."""

import os
import re
from collections.abc import Mapping

SECRET_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PAT")
MIN_SECRET_LENGTH = 8
"""Shorter values of environment variables are placeholders; replacing them would garble ordinary text."""
REPLACEMENT = "[redacted]"


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
        return self._pattern.sub(REPLACEMENT, text) if self._secrets else text

    def _compile(self) -> re.Pattern[str]:
        # Longest first: where one secret begins another, the rest of the longer one must not stay.
        return re.compile("|".join(re.escape(secret) for secret in sorted(self._secrets, key=len, reverse=True)))
