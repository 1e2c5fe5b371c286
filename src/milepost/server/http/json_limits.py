"""Limits of JSON, checked before it is parsed: arrays and objects, texts, depth, UTF-8."""

from codecs import getincrementaldecoder
from collections.abc import Iterator
from itertools import accumulate

from milepost.errors import InvalidMessage, TooLarge
from milepost.server.problems import INVALID, RequestRefused

CHECKED_PART_BYTES = 2**21
"""How much of a body is looked at in one go."""
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DEEPER = [byte in b"[{" for byte in range(256)]
_CHANGES = [deeper - (byte in b"]}") for byte, deeper in enumerate(_DEEPER)]


def check_counts(body: bytes, *, containers: int, texts: int) -> Iterator[None]:
    """Refuse a body that may have more arrays and objects, or more texts, than this; pause between the steps."""
    yield from check_body_containers(body, containers)
    quotes = 0
    # A quote behind a backslash begins no text: it is within one, or ends one that ends with a backslash.
    for begin, end in _parts(body):
        quotes += body.count(b'"', begin, end) - body.count(b'\\"', begin - 1 if begin else 0, end)
        yield
    if quotes > 2 * texts:
        raise TooLarge("body", f"there are more than {texts:,} texts: send less at once")


def check_body_containers(body: bytes, containers: int) -> Iterator[None]:
    """Refuse a body that may have more arrays and objects than this.

    Brackets within texts count, too: to tell them apart is to parse it.
    """
    found = 0
    for begin, end in _parts(body):
        found += body.count(b"[", begin, end) + body.count(b"{", begin, end)
        yield
    check_container_count("body", found, containers)


def check_utf8(body: bytes) -> Iterator[None]:
    """Refuse a body that is not UTF-8."""
    decoder = getincrementaldecoder("utf-8")()
    try:
        for begin, end in _parts(body):
            decoder.decode(body[begin:end], final=end == len(body))
            yield
    except UnicodeDecodeError:
        problem = f"The body is not UTF-8, from byte {_first_bad_byte(body)} on"
        raise RequestRefused(INVALID, problem, field="body") from None


def _first_bad_byte(body: bytes) -> int:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(body)


def _parts(body: bytes) -> Iterator[tuple[int, int]]:
    for begin in range(0, len(body), CHECKED_PART_BYTES):
        yield begin, min(begin + CHECKED_PART_BYTES, len(body))


def count_containers(text: bytes) -> int:
    """Return how many arrays and objects a JSON text has at the most."""
    return text.count(b"[") + text.count(b"{")


def check_container_count(field: str, found: int, limit: int) -> None:
    """Refuse a JSON text with more of them than this."""
    if found > limit:
        raise TooLarge(field, f"there are more than {limit:,} arrays and objects, brackets in texts included")


def check_depth(field: str, text: bytes, limit: int) -> None:
    """Refuse JSON that is nested more deeply than this. It has to be well-formed."""
    if count_containers(text) > limit and json_depth(text) > limit:
        raise InvalidMessage(field, f"it is nested too deeply: {limit:,} levels are the most")


def json_depth(text: bytes) -> int:
    """Return how many arrays and objects of well-formed JSON are in each other."""
    # What is left of the quotes are the ends of texts, so that each second part is within one.
    parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    brackets = b"".join(parts[::2]).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_CHANGES.__getitem__, brackets)), default=0)
