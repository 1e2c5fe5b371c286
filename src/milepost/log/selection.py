"""Which messages a reader wants: categories, streams, types."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.errors import InvalidMessage, TooLarge
from milepost.log.codec import check_name, check_stream
from milepost.log.message import Message

MAX_CHOICES = 1000
"""The most categories, streams or types that one selection may name."""
MAX_PATTERN = 10_000
"""The longest expression that all patterns of one selection together may make."""


@dataclass(frozen=True)
class Selection:
    """Several of a kind mean any of them; different kinds mean all of them; nothing means everything."""

    categories: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    types: "Types | None" = None

    @classmethod
    def of(
        cls,
        *,
        category: str | Sequence[str] | None = None,
        stream: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
    ) -> "Selection":
        """The selection that a user's words mean; what cannot be meant is refused."""
        categories = _choices("category", category)
        streams = _choices("stream", stream)
        for name in streams or ():
            check_stream(name)
        chosen = _choices("types", types)
        return cls(categories, streams, None if chosen is None else Types.of(chosen))

    @property
    def everything(self) -> bool:
        """Whether no message is left out."""
        return self.categories is None and self.streams is None and self.types is None

    def matches(self, message: Message[Any]) -> bool:
        """Whether this message is wanted."""
        return (
            (self.streams is None or message.stream in self.streams)
            and (self.categories is None or message.category in self.categories)
            and (self.types is None or self.types.match(message.type))
        )


@dataclass(frozen=True)
class Types:
    """Exact types, and patterns in which `*` is one dotted part and `>` is the rest."""

    exact: frozenset[str]
    pattern: str | None

    @classmethod
    def of(cls, types: frozenset[str]) -> "Types":
        """Sorts exact names from patterns."""
        patterns = sorted(name for name in types if {"*", ">"} & set(name))
        expressions = [_expression(pattern) for pattern in patterns]
        whole = f"^(?:{'|'.join(expressions)})$" if expressions else None
        if whole is not None and len(whole) > MAX_PATTERN:
            raise TooLarge(
                "types", f"the patterns make {len(whole):,} characters, over the limit of {MAX_PATTERN:,}"
            )
        return cls(types - frozenset(patterns), whole)

    def match(self, name: str) -> bool:
        """Whether a type is one of these."""
        if name in self.exact:
            return True
        return self.pattern is not None and re.fullmatch(self.pattern, name, re.DOTALL) is not None


def _expression(pattern: str) -> str:
    # Read by PostgreSQL and by Python alike: literals, one class and one repetition.
    parts = pattern.split(".")
    if any(len(part) > 1 and {"*", ">"} & set(part) for part in parts):
        raise InvalidMessage("types", f"{pattern!r}: * and > stand for whole parts between dots")
    if ">" in parts[:-1]:
        raise InvalidMessage("types", f"{pattern!r}: > is the rest and stands at the end only")
    spelled = {"*": "[^.]+", ">": ".+"}
    return r"\.".join(spelled.get(part) or _escaped(part) for part in parts)


def _escaped(part: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else "\\" + c for c in part)


def _choices(field: str, given: str | Sequence[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    if not isinstance(given, Iterable):
        raise InvalidMessage(field, f"a string or a list of strings is wanted, not {given!r}")
    chosen = frozenset([given] if isinstance(given, str) else given)
    if not chosen:
        raise InvalidMessage(field, "an empty list selects nothing: leave it out to select everything")
    if len(chosen) > MAX_CHOICES:
        raise TooLarge(field, f"{len(chosen):,} of them, over the limit of {MAX_CHOICES:,}")
    for name in chosen:
        check_name(field, name)
    return chosen
