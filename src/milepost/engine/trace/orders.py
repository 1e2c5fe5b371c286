"""The order that a stored definition means, and a message's place in it."""

from typing import Any

from milepost.engine.order import BY_STREAM, UNRELATED, ByProperty, Order, Unordered, by_correlation, lanes_of
from milepost.engine.place import Place
from milepost.log.message import Message


class Orders:
    """Understands stored orders; those by a function only where this program has that function."""

    def __init__(self, place: Place) -> None:
        self._group = place.group
        self._subscriptions = place.subscriptions

    def of(self, group: str, name: str, text: str) -> Order | None:
        """The order of a subscription by its text; None: only a program that has the function knows it."""
        if group == self._group and name in self._subscriptions:
            declared = self._subscriptions[name].declaration.ordered_by
            if declared.text == text:
                return declared
        kind, _, rest = text.partition(" ")
        if kind == "property" and rest:
            return ByProperty(rest)
        return {"stream": BY_STREAM, "none": UNRELATED, "correlation": by_correlation}.get(text)


def key_of(order: Order, message: Message[Any]) -> str | None:
    """A message's key. Where a function gives none the stream stands for it, as when it is parked for that."""
    try:
        return order.key(message)
    except Unordered:
        return order.stream_key(message)


def lane_of(order: Order, message: Message[Any], lanes: int) -> int:
    """A message's lane."""
    key = key_of(order, message)
    return lanes_of([message], None if key is None else [key], lanes)[0]
