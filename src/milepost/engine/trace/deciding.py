"""Which part of a filter decided on a message."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from milepost.filter.canonical import literal
from milepost.filter.excerpt import on_one_line
from milepost.filter.explain import Explanation
from milepost.filter.tree import Exists, Junction, Not, Property, walk

_WIDTH = 60


class Part(msgspec.Struct, frozen=True):
    """A part of a filter, and what it came to."""

    text: str
    value: bool | None
    """None: it could not be evaluated, which is no match."""
    error: str | None
    """Why it could not."""
    properties: dict[str, Any]
    """The message's properties that it looks at, as far as the message has them."""

    def __str__(self) -> str:
        text = on_one_line(self.text, _WIDTH)
        if self.error is not None:
            return f"{text}: {self.error}"
        values = ", ".join(
            f"{name} is {on_one_line(literal(each), _WIDTH)}" for name, each in self.properties.items()
        )
        return f"{text} is {'true' if self.value else 'false'}{f' ({values})' if values else ''}"


def deciding(explanation: Explanation, properties: Mapping[str, Any]) -> tuple[Part, ...]:
    """The smallest parts that made the whole what it is: one, or all that had to agree."""
    return tuple(_part(part, properties) for part in _decisive(explanation))


def _decisive(part: Explanation) -> Iterator[Explanation]:
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
        yield from _decisive(child)


def _part(part: Explanation, properties: Mapping[str, Any]) -> Part:
    names = [node.name for node in walk(part.node) if isinstance(node, Property | Exists)]
    problem = part.problem
    return Part(
        text=part.text,
        value=bool(part.value) if problem is None else None,
        error=None if problem is None else problem.summary + (f" ({problem.hint})" if problem.hint else ""),
        properties={name: properties[name] for name in dict.fromkeys(names) if name in properties},
    )
