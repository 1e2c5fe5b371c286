"""What ran when a process vanished has this process for itself, over all its subscriptions."""

from typing import Protocol


class Suspicious(Protocol):
    """Hands out messages, to handlers or to consumers, some of which may have ended a process."""

    @property
    def in_flight(self) -> int:
        """How many messages are out."""
        ...

    def wake(self) -> None:
        """Something may have become possible."""
        ...


class Solitude:
    """Lets one at a time hand out what is suspect, when nothing of the others is out."""

    def __init__(self) -> None:
        self._all: dict[Suspicious, None] = {}
        self._wanting: dict[Suspicious, None] = {}

    def join(self, one: Suspicious) -> None:
        """It hands out messages from now on."""
        self._all[one] = None

    def leave(self, one: Suspicious) -> None:
        """It hands out nothing any more."""
        self._all.pop(one, None)
        self.wants(one, False)

    def wants(self, one: Suspicious, wants: bool) -> None:
        """Whether it has something that is suspect."""
        if wants is (one in self._wanting):
            return
        if wants:
            self._wanting[one] = None
        else:
            del self._wanting[one]
        self._wake()

    def permits(self, one: Suspicious) -> bool:
        """Whether it may hand out something now."""
        if not self._wanting:
            return True
        is_next = one is next(iter(self._wanting))
        return is_next and not any(other.in_flight for other in self._all if other is not one)

    def settled(self) -> None:
        """Something that was out is no longer."""
        if self._wanting:
            self._wake()

    def _wake(self) -> None:
        for one in self._all:
            one.wake()
