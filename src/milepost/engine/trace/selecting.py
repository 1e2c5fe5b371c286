"""Whether a stored definition selects a message, and if not, why not."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from milepost.engine.trace.deciding import Part, deciding
from milepost.errors import MilepostError
from milepost.filter import pushdown
from milepost.filter.explain import explain
from milepost.filter.parser import parse
from milepost.filter.tree import Node
from milepost.log.message import Message
from milepost.log.reader import Condition, Query
from milepost.log.selection import Selection, Types

_NAMED = 3
"""How many of several names are said."""


class Verdict(msgspec.Struct, frozen=True):
    """What a definition says of a message."""

    state: Literal["selected", "not selected", "filtered"]
    why: str = ""
    parts: tuple[Part, ...] = ()
    """Of the filter: those that decided against it."""


SELECTED = Verdict("selected")


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a definition: what `Declaration.selects` makes."""

    category: list[str] | None
    stream: list[str] | None
    types: list[str] | None
    where: str | None


@dataclass(frozen=True)
class Selecting:
    """What a definition selects."""

    selection: Selection
    names: Mapping[str, Collection[str] | None]
    """What it takes, by kind, as it was declared; None: any."""
    where: Node | None

    def verdict(self, message: Message[Any]) -> Verdict:
        """Whether it selects a message."""
        for kind, is_wanted, found in self._aspects(message):
            if not is_wanted:
                return Verdict("not selected", f"it takes {_listed(kind, self.names[kind])}, not {found}")
        if self.where is None:
            return SELECTED
        explanation = explain(self.where, message.properties)
        if explanation.value is True:
            return SELECTED
        parts = deciding(explanation, message.properties)
        return Verdict("filtered", " and ".join(map(str, parts)), parts)

    def _aspects(self, message: Message[Any]) -> list[tuple[str, bool, str]]:
        wanted = self.selection
        return [
            ("stream", wanted.streams is None or message.stream in wanted.streams, message.stream),
            ("category", wanted.categories is None or message.category in wanted.categories, message.category),
            ("type", wanted.types is None or wanted.types.match(message.type), message.type),
        ]

    def narrowing(self) -> Query:
        """A query of a stream that gives all that it selects, and as little else as SQL can tell."""
        types = Selection(types=self.selection.types)
        implied = None if self.where is None else pushdown.derive(self.where)
        return Query(types, condition=None if implied is None else Condition(implied.path, implied.variables))


@lru_cache(maxsize=1000)
def selecting(text: str) -> Selecting | None:
    """What the text of a definition means; None: it has words that only another version of Milepost knows."""
    try:
        stored = msgspec.json.decode(text, type=_Stored)
        # Not compiled: the text may have grown beyond what a user may write.
        where = None if stored.where is None else parse(stored.where)
        types = None if stored.types is None else Types.of(frozenset(stored.types))
    except (msgspec.MsgspecError, MilepostError):
        return None
    selection = Selection(_set(stored.category), _set(stored.stream), types)
    return Selecting(
        selection, {"category": stored.category, "stream": stored.stream, "type": stored.types}, where
    )


def _set(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _listed(kind: str, names: Collection[str] | None) -> str:
    known = list(names or ())
    plural = {"category": "categories"}.get(kind, f"{kind}s")
    if len(known) == 1:
        return f"{kind} {known[0]}"
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return f"{plural} {', '.join(known[:_NAMED])}{more}"
