"""Lines of JSON that tell whether they are as they were written: the last field of each is its checksum."""

import re
from zlib import crc32

_SUFFIX = re.compile(r',"crc":"([0-9a-f]{8})"}')
_SUFFIX_CHARACTERS = len(',"crc":"00000000"}')


def with_crc(body: str) -> str:
    """``body``, a JSON object of at least one field, with a last field ``crc`` more.

    That is the CRC-32, as 8 hexadecimal digits, of the bytes of ``body``.
    """
    return f'{body[:-1]},"crc":"{crc32(body.encode()):08x}"}}'


def check_crc(line: str) -> None:
    """Does nothing where ``line`` is as ``with_crc`` made it.

    Raises:
        ValueError: it was changed since, or is no such line.
    """
    body, suffix = line[:-_SUFFIX_CHARACTERS] + "}", line[-_SUFFIX_CHARACTERS:]
    stored = _SUFFIX.fullmatch(suffix)
    if stored is None:
        raise ValueError("it does not end in its crc")
    if int(stored[1], 16) != (found := crc32(body.encode())):
        raise ValueError(f"its crc is {stored[1]}, but its content gives {found:08x}")
