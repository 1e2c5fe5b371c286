"""A listener that notes what it is told."""

from typing import Any

from milepost import Milepost
from milepost.engine.observe.events import Event, MessageEvent


class Notes:
    """Listens to everything."""

    def __init__(self, mp: Milepost) -> None:
        self.events: list[Event] = []
        mp.on_event(self.note)

    def note(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    @property
    def names(self) -> list[str]:
        """The kinds of what happened to messages."""
        return [type(event).__name__ for event in self.of(MessageEvent)]
