"""A consumer whose user is at the other end of a connection."""

import secrets
from collections.abc import Iterable, Sequence

from milepost.app import Milepost
from milepost.dispatch import Route
from milepost.engine.consuming.consumer import AnyClaim, Consumer
from milepost.engine.consuming.delivery import Delivery
from milepost.engine.consuming.statistics import How
from milepost.server.access.visitor import Visitor
from milepost.server.websocket.endings import Fate
from milepost.server.websocket.incoming import Extend, Id, Settle
from milepost.server.websocket.outgoing import Because, OneDelivery, Settled
from milepost.server.wire.message import StreamMessage

NOT_OPEN = "is not open: it was settled before, was lost, or never was this consumer's"
REMEMBERED = 1000
"""Lost deliveries of which is known that they were."""
VANISHED = "the connection of its consumer was lost"


class Remote:
    """What such a consumer has, by the numbers that its client knows. It can outlive its connection."""

    def __init__(
        self,
        mp: Milepost,
        group: str,
        name: str,
        routes: Sequence[Route],
        *,
        called: str | None,
        visitor: Visitor,
    ) -> None:
        self.address = (group, name)
        self.visitor = visitor
        self.key = secrets.token_urlsafe(18)
        """With which a client comes back to it."""
        self.consumer: Consumer = mp.desks.consumer(
            group, name, routes, called=called, lost=self._lose, recalled=self._recall
        )
        self.open: dict[Id, Delivery] = {}
        self._ids: dict[AnyClaim, Id] = {}
        self._last = 0
        self._lost: list[Because] = []
        """What its client has to be told."""
        self._recalled = False
        """Whether its client is to give back what nobody has begun with."""
        self._gone: dict[Id, str] = {}
        """What was lost last, and why."""

    # Coming and going

    async def come(self) -> None:
        """Begins to take; raises what `mp.consumer` does."""
        await self.consumer.__aenter__()

    def go(self, fate: Fate) -> None:
        """Ends it, or has it wait for a client that comes back."""
        match fate:
            case Fate.LEAVES:
                self.consumer.leave()
            case Fate.LOST:
                self.consumer.lose(VANISHED)
            case Fate.KEPT:
                self.consumer.suspend()

    def come_back(self, has: Iterable[Id] | None) -> None:
        """A client is there again, which has these; null is everything."""
        if has is not None:
            known = set(has)
            missing = [each for each in self.open if each not in known]
            self.consumer.give_back([self._close(each) for each in missing])
            # What it was told just before the connection broke it may not have heard.
            told = {each.id for each in self._lost}
            self._lost += [
                Because(each, self._gone[each]) for each in known if each in self._gone and each not in told
            ]
        self.consumer.go_on()

    # Deliveries

    def take(self, limit: int) -> list[OneDelivery]:
        """What is there to be sent, at most so many."""
        return [self._number(delivery) for delivery in self.consumer.at_hand(limit)]

    def _number(self, delivery: Delivery) -> OneDelivery:
        self._last += 1
        self.open[self._last] = delivery
        self._ids[delivery.claim] = self._last
        return OneDelivery(
            self._last, delivery.attempt, delivery.route, delivery.replay, StreamMessage.of(delivery.message)
        )

    def _close(self, number: Id) -> Delivery:
        delivery = self.open.pop(number)
        del self._ids[delivery.claim]
        return delivery

    def _lose(self, claims: Sequence[AnyClaim], reason: str) -> None:
        """What the client has not been sent yet it does not miss."""
        ids = [self._ids[claim] for claim in claims if claim in self._ids]
        for number in ids:
            self._close(number)
            self._gone[number] = reason
        self._lost += [Because(number, reason) for number in ids]
        while len(self._gone) > REMEMBERED:
            del self._gone[next(iter(self._gone))]

    def _recall(self) -> None:
        self._recalled = bool(self.open)

    def take_recall(self) -> bool:
        """Whether the client is to be asked for what nobody has begun with; asked once."""
        recalled, self._recalled = self._recalled, False
        return recalled and self.consumer.desk.recalls

    def take_lost(self) -> list[Because]:
        """What was lost since this was last asked."""
        lost, self._lost = self._lost, []
        return lost

    # Settling

    def settle(self, frame: Settle) -> Settled:
        """Settles what is open; the answer tells of each."""
        moved: list[Id] = []
        refused: list[Because] = []
        self._settle("ack", frame.ack, moved, refused)
        for retry in frame.retry:
            words = {"after": retry.after, "count": retry.count, "reason": retry.reason, "error": retry.error}
            self._settle("retry", [retry.id], moved, refused, within=retry.within, **words)
        for park in frame.park:
            self._settle("park", [park.id], moved, refused, reason=park.reason)
        for skip in frame.skip:
            self._settle("skip", [skip.id], moved, refused, reason=skip.reason)
        self._give_back(frame.back, moved, refused)
        return Settled(ref=frame.ref, moved=moved, refused=refused)

    def _settle(
        self, how: How, ids: Sequence[Id], moved: list[Id], refused: list[Because], **words: object
    ) -> None:
        known = self._known(ids, refused)
        late = set(self.consumer.settled(how, list(known.values()), **words)) if known else set()
        for number, delivery in known.items():
            self._close(number)
            if delivery in late:
                refused.append(Because(number, self.consumer.why_refused(delivery)))
            else:
                moved.append(number)

    def _give_back(self, ids: Sequence[Id], moved: list[Id], refused: list[Because]) -> None:
        known = self._known(ids, refused)
        late = {number: self.consumer.why_refused(each) for number, each in known.items() if not each.is_open}
        self.consumer.give_back([self._close(number) for number in known])
        moved += [number for number in known if number not in late]
        refused += [Because(number, reason) for number, reason in late.items()]

    def extend(self, frame: Extend) -> Settled:
        """Gives what is open more time; the answer tells of each."""
        refused: list[Because] = []
        known = self._known(frame.deliveries, refused)
        late = set(self.consumer.extend(list(known.values()), frame.seconds))
        refused += [
            Because(number, self.consumer.why_refused(each)) for number, each in known.items() if each in late
        ]
        moved = [number for number, each in known.items() if each not in late]
        return Settled(ref=frame.ref, moved=moved, refused=refused)

    def _known(self, ids: Sequence[Id], refused: list[Because]) -> dict[Id, Delivery]:
        known: dict[Id, Delivery] = {}
        for number in ids:
            delivery = self.open.get(number)
            if delivery is None or number in known:
                refused.append(Because(number, self._gone.get(number, NOT_OPEN)))
            else:
                known[number] = delivery
        return known
