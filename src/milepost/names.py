"""Names: what they may look like, how large things may be, and which known name a misspelt one means."""

import re
import socket
from collections.abc import Iterable
from contextlib import suppress
from difflib import get_close_matches
from hashlib import sha256
from inspect import signature
from ipaddress import ip_address
from typing import Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

MigrateMode: TypeAlias = Literal["auto", "check", "off"]
"""What to do about a schema when it is opened: bring it up to date, refuse one that is not, or not look."""

MAX_NAME_BYTES = 512
"""The longest name of a stream, a type or a property, in UTF-8."""

MAX_PROPERTIES = 255
"""The most properties that a message may have."""

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**63 - 1
"""The bounds of an integer of 64 bits with a sign, as a property's value and in a filter."""

MAX_POSITION_NUMBER = 2**63 - 1
"""The highest position or version: a `bigint` holds no more."""

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


MAX_COMPARED_CHARACTERS = 1100
"""The longest word that is compared with others: comparing takes time. No address of a subscription is longer."""


class OptionsWithSuggestions:
    """A class of options, all given by their names: a misspelt one is refused with the one that is meant."""

    def __new__(cls, *_: Any, **options: Any) -> Self:
        known = signature(cls.__init__).parameters
        for name in options:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no option {name!r}{suggestion(name, list(known)[1:])}")
        return super().__new__(cls)


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the known one that is close to it, or else all of them."""
    names = list(known)
    close = closest_name(name, names)
    return f": did you mean {close!r}?" if close else f"; it has {', '.join(names)}"


def suggestion_in_parentheses(word: object, known: Iterable[str]) -> str:
    """The same for a sentence that names all of them anyway: the close one in parentheses, or nothing."""
    close = closest_name(word, known) if isinstance(word, str) else None
    return f" (did you mean {close!r}?)" if close else ""


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is close to an unknown one, if any is."""
    if len(name) > MAX_COMPARED_CHARACTERS:
        return None
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def is_loopback_url(address: str) -> bool:
    """Return True if only the machine itself reaches the address of a server, however that is written."""
    host = (urlsplit(address).hostname or "").removesuffix(".")
    with suppress(OSError, UnicodeError):
        # Connecting takes 127.1 and 2130706433 for 127.0.0.1.
        host = socket.inet_ntoa(socket.inet_aton(host))
    return is_loopback(host) or host.endswith(".localhost") or host in ("0.0.0.0", "::")  # noqa: S104 - none is bound
