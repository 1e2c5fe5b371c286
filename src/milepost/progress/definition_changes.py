"""What changed of a definition, in words for a person."""

import msgspec

MAX_SELECTION_CHARACTERS = 300
"""Characters of what is selected, at most."""


class ComparedDefinition(msgspec.Struct, frozen=True, kw_only=True):
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


_selection_decoder = msgspec.json.Decoder(_Selected)


def describe_selection_change(before: ComparedDefinition, after: ComparedDefinition, position: int) -> str:
    """Something else is selected, from a position on."""
    return f"{'; '.join(_describe_selections(before, after))}, from position {position:,} on"


def describe_order_change(before: ComparedDefinition, after: ComparedDefinition, position: int, again: int) -> str:
    """Another order, or other lanes, are in force from a position on; of so many after it some come again."""
    ordered = [f"{what} changed from {was} to {is_}" for what, was, is_ in _order_differences(before, after)]
    said = f"{'; '.join([*_describe_selections(before, after), *ordered])}, from position {position:,} on"
    if not again:
        return said
    return (
        f"{said}; of the {again:,} positions after that, what was handled comes again: lanes stood apart, and "
        "nobody was left who knows the old order"
    )


def describe_pending_order(before: ComparedDefinition, after: ComparedDefinition) -> str:
    """Another order, or other lanes, are to be in force."""
    return f"{_describe_wanted_order(before, after)}, as soon as all lanes have come to one position"


def describe_refused_order(before: ComparedDefinition, after: ComparedDefinition) -> str:
    """Another order cannot be in force: messages would come twice."""
    return (
        f"{_describe_wanted_order(before, after)}, and cannot: its lanes stand at different positions, nobody is "
        "left who knows the old order, and its handlers write exactly once, but messages would come twice. "
        "It stands still: move it, or let the program with the old order handle everything first"
    )


def describe_waiting(newer: ComparedDefinition, own: ComparedDefinition) -> str:
    """A newer program runs it, with another definition."""
    differences = describe_differences(newer, own)
    return f"waits until a newer program has ended, which runs it with another definition: {differences}"


def describe_differences(other: ComparedDefinition, own: ComparedDefinition) -> str:
    """What differs between two definitions; nothing if they are equal."""
    differences = [*_selection_differences(other, own), *_order_differences(other, own)]
    return "; ".join(f"{what} {theirs}, here {mine}" for what, theirs, mine in differences)


def describe_renaming(before: str, after: str) -> str:
    """It has another name."""
    return f"it was named {before} and is now {after}, and goes on where it was"


def _describe_selections(before: ComparedDefinition, after: ComparedDefinition) -> list[str]:
    return [
        f"{what} changed: it selected {was} and now selects {is_}"
        for what, was, is_ in _selection_differences(before, after)
    ]


def _describe_wanted_order(before: ComparedDefinition, after: ComparedDefinition) -> str:
    verbs = {"order": "is", "lanes": "are"}
    return "; ".join(
        f"{what} {verbs[what]} to change from {was} to {is_}"
        for what, was, is_ in _order_differences(before, after)
    )


def _selection_differences(one: ComparedDefinition, other: ComparedDefinition) -> list[tuple[str, str, str]]:
    """What differs in what two select, and how each says it."""
    try:
        first, second = _selection_decoder.decode(one.selects), _selection_decoder.decode(other.selects)
    except msgspec.DecodeError:
        return _only_differences([("selection", one.selects, other.selects)])
    return _only_differences(
        [
            ("category", _names_text(first.category), _names_text(second.category)),
            ("streams", _names_text(first.stream), _names_text(second.stream)),
            ("types", _names_text(first.types), _names_text(second.types)),
            ("filter", first.where or "everything", second.where or "everything"),
        ]
    )


def _order_differences(one: ComparedDefinition, other: ComparedDefinition) -> list[tuple[str, str, str]]:
    return _only_differences(
        [
            ("order", _order_text(one.orders), _order_text(other.orders)),
            ("lanes", str(one.lanes), str(other.lanes)),
        ]
    )


def _only_differences(pairs: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    return [(what, _cut_text(one), _cut_text(other)) for what, one, other in pairs if one != other]


def _names_text(names: tuple[str, ...] | None) -> str:
    return "all" if names is None else ", ".join(names) or "none"


def _order_text(text: str) -> str:
    kind, _, name = text.partition(" ")
    return {"function": f"a function, version {name}", "property": f"property {name}"}.get(kind, text)


def _cut_text(text: str) -> str:
    return text if len(text) <= MAX_SELECTION_CHARACTERS else f"{text[:MAX_SELECTION_CHARACTERS]} …"
