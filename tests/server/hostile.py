"""What anybody may send in any field, as it is written in JSON."""

import json
from collections.abc import Collection
from typing import Any, Final

import pytest

HOSTILE: Final = {
    "NUL": json.dumps("a\0b"),
    "SQL": json.dumps("'; drop table messages; --"),
    "SQL with a dollar": json.dumps("$$; drop schema public cascade; $$"),
    "SQL in an identifier": json.dumps('a"."b'),
    "percent signs": json.dumps("%s %(name)s %% {} {0} {mp}"),
    "a header": json.dumps("x\r\nSet-Cookie: owned=1\r\n\r\n<html>"),
    "a path": json.dumps("../../../etc/passwd"),
    "half a character": '"\\ud83d"',
    "not UTF-8": '"\udcff"',
    "emoji": json.dumps("\U0001f6d2\u202e\U0010ffff", ensure_ascii=False),
    "a megabyte": json.dumps("x" * 1_000_000),
    "nothing": '""',
    "null": "null",
    "true": "true",
    "a negative number": "-1",
    "a fraction": "0.5",
    "more than 64 bits": "9223372036854775808",
    "more than a double": "1e400",
    "a list": "[]",
    "a list of lists": '[["a"], {"b": [1]}, null]',
    "an object": '{"a": {"b": "\\u0000"}}',
    "deep parentheses": json.dumps("(" * 10_000 + "a" + ")" * 10_000),
    "deep lists": "[" * 5000 + "]" * 5000,
    "deep objects": '{"a":' * 5000 + "1" + "}" * 5000,
    "no JSON": '"a", "b": }',
}
"""Halves of characters, and what is no UTF-8, are bytes that `written` makes of them."""
HERE: Final = "@here@"
"""Where it goes in a body."""


def values(fast: Collection[str]) -> list[Any]:
    """All of them as parameters of a test: those with these names in the fast shard, the others in their own."""
    assert HOSTILE.keys() >= set(fast)
    slow = pytest.mark.shard("hostile")
    return [pytest.param(HOSTILE[name], id=name, marks=[] if name in fast else slow) for name in HOSTILE]


def written(body: object, value: str) -> bytes:
    """A body with this in its place."""
    return json.dumps(body).replace(json.dumps(HERE), value).encode("utf-8", "surrogateescape")


def text_of(value: str) -> bytes:
    """The same for a place that has text only, such as an address."""
    try:
        found = json.loads(value.encode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return value.encode("utf-8", "surrogateescape")
    return (found if isinstance(found, str) else value).encode("utf-8", "surrogatepass")
