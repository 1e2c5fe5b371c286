"""What a stored definition means: its order, what it selects, and which part of its filter decided."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from milepost.engine.declare.order import BY_STREAM, NO_ORDER, ByProperty, NoKey, Order, by_correlation, lanes_of
from milepost.engine.declare.subscription import ProgramSubscriptions
from milepost.errors import MilepostError
from milepost.filter import pushdown
from milepost.filter.canonical import literal
from milepost.filter.excerpt import on_one_line
from milepost.filter.explain import Explanation, explain
from milepost.filter.parser import parse
from milepost.filter.tree import Exists, Junction, Node, Not, Property, walk
from milepost.log.message import Message
from milepost.log.query import PropertyCondition, Query, Selection, TypePatterns

_MAX_PART_CHARACTERS = 60


class DecisivePart(msgspec.Struct, frozen=True):
    """A part of a filter, and what it came to."""

    text: str
    value: bool | None
    """None: it could not be evaluated, which is no match."""
    error: str | None
    """Why it could not."""
    properties: dict[str, Any]
    """The message's properties that it looks at, as far as the message has them."""

    def __str__(self) -> str:
        text = on_one_line(self.text, _MAX_PART_CHARACTERS)
        if self.error is not None:
            return f"{text}: {self.error}"
        values = ", ".join(
            f"{name} is {on_one_line(literal(each), _MAX_PART_CHARACTERS)}"
            for name, each in self.properties.items()
        )
        return f"{text} is {'true' if self.value else 'false'}{f' ({values})' if values else ''}"


def decisive_parts(explanation: Explanation, properties: Mapping[str, Any]) -> tuple[DecisivePart, ...]:
    """The smallest parts that made the whole what it is: one, or all that had to agree."""
    return tuple(_part_of(part, properties) for part in _decisive_explanations(explanation))


def _decisive_explanations(part: Explanation) -> Iterator[Explanation]:
    match part.node:
        case Not():
            parts = part.children
        case Junction() if part.problem is not None:
            parts = tuple(child for child in part.children if child.problem is not None)
        case Junction(decisive=decisive) if part.value is decisive:
            parts = tuple(child for child in part.children if child.value is decisive)
        case Junction():
            parts = part.children
        case _:
            parts = ()
    # A part may be wrong in itself, where all it is made of is well.
    if not parts or (part.problem is not None and not any(child.problem for child in parts)):
        yield part
        return
    for child in parts:
        yield from _decisive_explanations(child)


def _part_of(part: Explanation, properties: Mapping[str, Any]) -> DecisivePart:
    names = [node.name for node in walk(part.node) if isinstance(node, Property | Exists)]
    problem = part.problem
    return DecisivePart(
        text=part.text,
        value=bool(part.value) if problem is None else None,
        error=None if problem is None else problem.summary + (f" ({problem.hint})" if problem.hint else ""),
        properties={name: properties[name] for name in dict.fromkeys(names) if name in properties},
    )


_MAX_LISTED_NAMES = 3
"""How many of several names are said."""


class SelectionVerdict(msgspec.Struct, frozen=True):
    """What a definition says of a message."""

    state: Literal["selected", "not selected", "filtered"]
    why: str = ""
    parts: tuple[DecisivePart, ...] = ()
    """Of the filter: those that decided against it."""


SELECTED = SelectionVerdict("selected")


class _SelectionText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text of a definition: what `Declaration.selects` makes."""

    category: list[str] | None
    stream: list[str] | None
    types: list[str] | None
    where: str | None


@dataclass(frozen=True)
class StoredSelection:
    """What a definition selects."""

    selection: Selection
    names: Mapping[str, Collection[str] | None]
    """What it takes, by kind, as it was declared; None: any."""
    where: Node | None

    def verdict(self, message: Message[Any]) -> SelectionVerdict:
        """Whether it selects a message."""
        for kind, is_wanted, found in self._aspects(message):
            if not is_wanted:
                return SelectionVerdict(
                    "not selected", f"it takes {_listed_names(kind, self.names[kind])}, not {found}"
                )
        if self.where is None:
            return SELECTED
        explanation = explain(self.where, message.properties)
        if explanation.value is True:
            return SELECTED
        parts = decisive_parts(explanation, message.properties)
        return SelectionVerdict("filtered", " and ".join(map(str, parts)), parts)

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
        return Query(
            types, condition=None if implied is None else PropertyCondition(implied.path, implied.variables)
        )


@lru_cache(maxsize=1000)
def stored_selection(text: str) -> StoredSelection | None:
    """What the text of a definition means; None: it has words that only another version of Milepost knows."""
    try:
        stored = msgspec.json.decode(text, type=_SelectionText)
        # Not compiled: the text may have grown beyond what a user may write.
        where = None if stored.where is None else parse(stored.where)
        types = None if stored.types is None else TypePatterns.of(frozenset(stored.types))
    except (msgspec.MsgspecError, MilepostError):
        return None
    selection = Selection(_as_set(stored.category), _as_set(stored.stream), types)
    return StoredSelection(
        selection, {"category": stored.category, "stream": stored.stream, "type": stored.types}, where
    )


def _as_set(names: list[str] | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


def _listed_names(kind: str, names: Collection[str] | None) -> str:
    known = list(names or ())
    plural = {"category": "categories"}.get(kind, f"{kind}s")
    if len(known) == 1:
        return f"{kind} {known[0]}"
    more = f" and {len(known) - _MAX_LISTED_NAMES} more" if len(known) > _MAX_LISTED_NAMES else ""
    return f"{plural} {', '.join(known[:_MAX_LISTED_NAMES])}{more}"


class StoredOrders:
    """Understands stored orders; those by a function only where this program has that function."""

    def __init__(self, group: str, subscriptions: ProgramSubscriptions) -> None:
        self._group = group
        self._subscriptions = subscriptions

    def of(self, group: str, name: str, text: str) -> Order | None:
        """The order of a subscription by its text; None: only a program that has the function knows it."""
        if group == self._group and name in self._subscriptions:
            declared = self._subscriptions[name].declaration.ordered_by
            if declared.text == text:
                return declared
        kind, _, rest = text.partition(" ")
        if kind == "property" and rest:
            return ByProperty(rest)
        return {"stream": BY_STREAM, "none": NO_ORDER, "correlation": by_correlation}.get(text)


def order_key_of(order: Order, message: Message[Any]) -> str | None:
    """A message's key. Where a function gives none the stream stands for it, as when it is parked for that."""
    try:
        return order.key(message)
    except NoKey:
        return order.stream_key(message)


def order_lane_of(order: Order, message: Message[Any], lanes: int) -> int:
    """A message's lane."""
    key = order_key_of(order, message)
    return lanes_of([message], None if key is None else [key], lanes)[0]
