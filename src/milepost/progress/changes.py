"""What changed of a definition, in words for a person."""

import msgspec

LONGEST = 300
"""Characters of what is selected, at most."""


class Defined(msgspec.Struct, frozen=True, kw_only=True):
    """What of a definition can differ from another's."""

    selects: str
    """In one canonical text: category, stream, types, filter."""
    orders: str
    lanes: int


class _Selected(msgspec.Struct, frozen=True):
    category: tuple[str, ...] | None = None
    stream: tuple[str, ...] | None = None
    types: tuple[str, ...] | None = None
    where: str | None = None


_selected = msgspec.json.Decoder(_Selected)


def selected_otherwise(before: Defined, after: Defined, position: int) -> str:
    """Something else is selected, from a position on."""
    return f"{'; '.join(_selected_otherwise(before, after))}, from position {position:,} on"


def ordered_otherwise(before: Defined, after: Defined, position: int, again: int) -> str:
    """Another order, or other lanes, are in force from a position on; of so many after it some come again."""
    ordered = [f"{what} changed from {was} to {is_}" for what, was, is_ in _orders(before, after)]
    said = f"{'; '.join([*_selected_otherwise(before, after), *ordered])}, from position {position:,} on"
    if not again:
        return said
    return (
        f"{said}; of the {again:,} positions after that, what was handled comes again: lanes stood apart, and "
        "nobody was left who knows the old order"
    )


def is_to_be_ordered(before: Defined, after: Defined) -> str:
    """Another order, or other lanes, are to be in force."""
    return f"{_to_be(before, after)}, as soon as all lanes have come to one position"


def cannot_be_ordered(before: Defined, after: Defined) -> str:
    """Another order cannot be in force: messages would come twice."""
    return (
        f"{_to_be(before, after)}, and cannot: its lanes stand at different positions, nobody is left who knows "
        "the old order, and its handlers write exactly once, but messages would come twice. It stands still: move "
        "it, or let the program with the old order handle everything first"
    )


def waits(newer: Defined, own: Defined) -> str:
    """A newer program runs it, with another definition."""
    return f"waits until a newer program has ended, which runs it with another definition: {differ(newer, own)}"


def differ(other: Defined, own: Defined) -> str:
    """What differs between two definitions; nothing if they are equal."""
    differences = [*_selections(other, own), *_orders(other, own)]
    return "; ".join(f"{what} {theirs}, here {mine}" for what, theirs, mine in differences)


def renamed(before: str, after: str) -> str:
    """It has another name."""
    return f"it was named {before} and is now {after}, and goes on where it was"


def _selected_otherwise(before: Defined, after: Defined) -> list[str]:
    return [
        f"{what} changed: it selected {was} and now selects {is_}" for what, was, is_ in _selections(before, after)
    ]


def _to_be(before: Defined, after: Defined) -> str:
    verbs = {"order": "is", "lanes": "are"}
    return "; ".join(
        f"{what} {verbs[what]} to change from {was} to {is_}" for what, was, is_ in _orders(before, after)
    )


def _selections(one: Defined, other: Defined) -> list[tuple[str, str, str]]:
    """What differs in what two select, and how each says it."""
    try:
        first, second = _selected.decode(one.selects), _selected.decode(other.selects)
    except msgspec.DecodeError:
        return _that_differ([("selection", one.selects, other.selects)])
    return _that_differ(
        [
            ("category", _listed(first.category), _listed(second.category)),
            ("streams", _listed(first.stream), _listed(second.stream)),
            ("types", _listed(first.types), _listed(second.types)),
            ("filter", first.where or "everything", second.where or "everything"),
        ]
    )


def _orders(one: Defined, other: Defined) -> list[tuple[str, str, str]]:
    return _that_differ(
        [("order", _order(one.orders), _order(other.orders)), ("lanes", str(one.lanes), str(other.lanes))]
    )


def _that_differ(pairs: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [(what, _short(one), _short(other)) for what, one, other in pairs if one != other]


def _listed(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ", ".join(names) or "none"


def _order(text: str) -> str:
    kind, _, name = text.partition(" ")
    return {"function": f"a function, version {name}", "property": f"property {name}"}.get(kind, text)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"
