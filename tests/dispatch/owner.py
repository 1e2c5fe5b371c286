"""A lane with its owner: short words for the tests of its rules."""

from collections.abc import Sequence
from typing import Any

from dispatch.examples import Example
from milepost.dispatch import (
    Breaker,
    Cursor,
    DeliveryRow,
    Exchange,
    ExchangeAnswer,
    HeldKey,
    Lane,
    LaneDelivery,
    LaneState,
    LoadedRow,
    Retry,
    Routes,
    RowCounts,
    Settings,
    State,
)

EVEN = Retry(attempts=3, delay=5, jitter=0)


class Owner:
    """Drives a lane by hand; deliveries are named by their positions, and `now` passes when told."""

    def __init__(
        self,
        *,
        state: LaneState[Example] | None = None,
        breaker: Breaker | None = None,
        routes: Routes[Example] | None = None,
        chance: float = 0.5,
        **settings: Any,
    ) -> None:
        self.now = 100.0
        self.settings = Settings(**{"retry": EVEN, **settings})
        self.breaker = breaker or Breaker(self.settings.stall_after, self.settings.retry.delay)
        self.lane: Lane[Example] = Lane(
            self.settings,
            state or LaneState(cursor=Cursor(0), now=self.now),
            breaker=self.breaker,
            routes=routes,
            random=lambda: chance,
        )
        self.open: dict[int, LaneDelivery[Example]] = {}

    def fill(self, *messages: Example, up_to: int | None = None) -> bool:
        last = messages[-1].position if messages else 0
        keys = [message.stream for message in messages] if self.settings.ordered else None
        return self.lane.fill(messages, keys, last if up_to is None else up_to)

    def next(self, limit: int = 1000) -> list[int]:
        """The positions of what goes out."""
        given = self.lane.next(self.now, limit)
        self.open.update((delivery.message.position, delivery) for delivery in given)
        return [delivery.message.position for delivery in given]

    def routed(self) -> list[tuple[int, str | None]]:
        """What goes out, and to whom."""
        given = self.lane.next(self.now)
        self.open.update((delivery.message.position, delivery) for delivery in given)
        return [(delivery.message.position, delivery.consumer) for delivery in given]

    def ack(self, *positions: int) -> None:
        assert self.lane.ack([self.open[position] for position in positions]) == []

    def retry(self, *positions: int, **how: Any) -> None:
        assert self.lane.retry([self.open[position] for position in positions], self.now, **how) == []

    def park(self, *positions: int, **why: Any) -> None:
        assert self.lane.park([self.open[position] for position in positions], self.now, **why) == []

    def expire(self, now: float | None = None) -> list[LaneDelivery[Example]]:
        """Retry what has timed out, each an attempt, and return it."""
        when = self.now if now is None else now
        late = self.lane.overdue(when)
        assert self.lane.retry(late, when, reason="timed out") == []
        return late

    def exchange(self) -> Exchange[Example]:
        made = self.lane.exchange(self.now)
        assert made is not None
        return made

    def write(self, **answer: Any) -> dict[int, DeliveryRow | None]:
        """One exchange that commits: what became of which row."""
        exchange = self.exchange()
        self.lane.exchanged(self.answer(exchange, **answer))
        return {move.position: move.row for move in exchange.write.moves} if exchange.write else {}

    def answer(self, exchange: Exchange[Example], **answer: Any) -> ExchangeAnswer[Example]:
        """What the store says when every move finds its row."""
        return ExchangeAnswer(moved=[True] * len(exchange.write.moves if exchange.write else ()), **answer)

    def states(self, **answer: Any) -> dict[int, str | None]:
        """As `write`, with the states alone; None: done."""
        return {position: str(row.state) if row else None for position, row in self.write(**answer).items()}


def stored(position: int, state: str, *, key: str | None = "a", **more: Any) -> LoadedRow[Example]:
    """A row in the store, with its message."""
    row = DeliveryRow(position=position, key=key, state=State(state), **{"since": 50.0, **more})
    return LoadedRow(row, Example(position, key=key or ""))


def held(*rows: LoadedRow[Example], more: bool = False) -> dict[str, HeldKey[Example]]:
    """An answer's rows, all of one key."""
    key = rows[0].row.key
    assert key is not None
    return {key: HeldKey(rows, more)}


def start(position: int = 0, *ahead: tuple[int, int], **more: Any) -> LaneState[Example]:
    """What is stored when an owner comes."""
    return LaneState(cursor=Cursor(position, ahead), **{"now": 100.0, "counts": RowCounts(), **more})


def many(first: int, last: int, keys: Sequence[str] = ("a",)) -> list[Example]:
    """Messages of these keys in turn."""
    return [Example(position, key=keys[position % len(keys)]) for position in range(first, last + 1)]
