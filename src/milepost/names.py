"""What names may look like, and how large things may be, wherever they arrive."""

import re
from hashlib import sha256
from ipaddress import ip_address

MAX_NAME_BYTES = 512
"""The longest name of a stream, a type or a property, in UTF-8."""

MAX_PROPERTIES = 255
"""The most properties that a message may have."""

BUCKETS = 1024
"""How many buckets the names of streams are spread over."""

WORD_OPERATORS = frozenset({"and", "or", "not"})
RESERVED_WORDS = WORD_OPERATORS | {"true", "false"}
"""Words of the filter language, which no property can be called."""

_PROPERTY_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.]*", re.ASCII)


def is_property_name(name: str) -> bool:
    """Whether a filter can say this name: a letter, then letters, digits, `_` and `.`."""
    return _PROPERTY_NAME.fullmatch(name) is not None and name not in RESERVED_WORDS


def category_of(stream: str) -> str:
    """What stands before the first dash of a stream's name; the whole name if there is none."""
    return stream.partition("-")[0]


def bucket_of(name: str) -> int:
    """The bucket of a name: the first two bytes of its SHA-256, big-endian, modulo 1,024.

    `milepost.bucket(text)` is the same function in SQL. It never changes: stored lanes rely on it.
    """
    return int.from_bytes(sha256(name.encode()).digest()[:2], "big") % BUCKETS


def category_hash(category: str) -> int:
    """What the index over categories holds: the first four bytes of the SHA-256, as a signed integer.

    `milepost.category_hash(text)` is the same function in SQL.
    """
    return int.from_bytes(sha256(category.encode()).digest()[:4], "big", signed=True)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach a host, which is a name or an address."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
