"""A consumer whose client is at the other end of a connection; it can outlive the connection."""

import secrets
from collections.abc import Iterable, Sequence

from milepost.app import Milepost
from milepost.dispatch import Route
from milepost.engine.consumers.consumer import Consumer
from milepost.engine.consumers.delivery import Delivery
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.observe.statistics import DeliveryOutcome
from milepost.server.access.authentication import Principal
from milepost.server.websocket.frames import ExtendFrame, FrameDelivery, SettleFrame
from milepost.server.websocket.session_end import ConsumerDisposition
from milepost.wire.frames import DeliveryId, RefusedDelivery, SettledFrame
from milepost.wire.messages import StreamMessage

NOT_OPEN_REASON = "is not open: it was settled before, was lost, or never was this consumer's"
MAX_REMEMBERED_DELIVERIES = 1000
"""Lost deliveries of which is known that they were."""
CONNECTION_LOST_REASON = "the connection of its consumer was lost"


class RemoteConsumer:
    """What such a consumer has, by the numbers that its client knows. It can outlive its connection."""

    def __init__(
        self,
        mp: Milepost,
        group: str,
        name: str,
        routes: Sequence[Route],
        *,
        called: str | None,
        principal: Principal,
    ) -> None:
        self.address = (group, name)
        self.principal = principal
        self.key = secrets.token_urlsafe(18)
        """With which a client comes back to it."""
        self.consumer: Consumer = mp.consumer_registry.consumer(
            group, name, routes, called=called, on_lost=self._lose, on_recalled=self._recall
        )
        self.open: dict[DeliveryId, Delivery] = {}
        self._ids: dict[AnyDelivery, DeliveryId] = {}
        self._last = 0
        self._lost: list[RefusedDelivery] = []
        """What its client has to be told."""
        self._recalled = False
        """Whether its client is to give back what nobody has begun with."""
        self._gone: dict[DeliveryId, str] = {}
        """What was lost last, and why."""

    # Coming and going

    async def enter(self) -> None:
        """Begins to take; raises what `mp.consumer` does."""
        await self.consumer.__aenter__()

    def leave_with(self, disposition: ConsumerDisposition) -> None:
        """Ends it, or has it wait for a client that comes back."""
        match disposition:
            case ConsumerDisposition.LEAVES:
                self.consumer.leave()
            case ConsumerDisposition.LOST:
                self.consumer.lose(CONNECTION_LOST_REASON)
            case ConsumerDisposition.KEPT:
                self.consumer.suspend()

    def resume_client(self, has: Iterable[DeliveryId] | None) -> None:
        """A client is there again, which has these; null is everything."""
        if has is not None:
            known = set(has)
            missing = [each for each in self.open if each not in known]
            self.consumer.give_back([self._close(each) for each in missing])
            # What it was told just before the connection broke it may not have heard.
            told = {each.id for each in self._lost}
            self._lost += [
                RefusedDelivery(each, self._gone[each])
                for each in known
                if each in self._gone and each not in told
            ]
        self.consumer.go_on()

    # Deliveries

    def take(self, limit: int) -> list[FrameDelivery]:
        """What is there to be sent, at most so many."""
        return [self._number(delivery) for delivery in self.consumer.at_hand(limit)]

    def _number(self, delivery: Delivery) -> FrameDelivery:
        self._last += 1
        self.open[self._last] = delivery
        self._ids[delivery.claim] = self._last
        return FrameDelivery(
            self._last, delivery.attempt, delivery.route, delivery.replay, StreamMessage.of(delivery.message)
        )

    def _close(self, number: DeliveryId) -> Delivery:
        delivery = self.open.pop(number)
        del self._ids[delivery.claim]
        return delivery

    def _lose(self, claims: Sequence[AnyDelivery], reason: str) -> None:
        """What the client has not been sent yet it does not miss."""
        ids = [self._ids[claim] for claim in claims if claim in self._ids]
        for number in ids:
            self._close(number)
            self._gone[number] = reason
        self._lost += [RefusedDelivery(number, reason) for number in ids]
        while len(self._gone) > MAX_REMEMBERED_DELIVERIES:
            del self._gone[next(iter(self._gone))]

    def _recall(self) -> None:
        self._recalled = bool(self.open)

    def take_recall(self) -> bool:
        """Whether the client is to be asked for what nobody has begun with; asked once."""
        recalled, self._recalled = self._recalled, False
        return recalled and self.consumer.recalls

    def take_lost(self) -> list[RefusedDelivery]:
        """What was lost since this was last asked."""
        lost, self._lost = self._lost, []
        return lost

    # Settling

    def settle(self, frame: SettleFrame) -> SettledFrame:
        """Settles what is open; the answer tells of each."""
        moved: list[DeliveryId] = []
        refused: list[RefusedDelivery] = []
        self._settle("ack", frame.ack, moved, refused)
        for retry in frame.retry:
            words = {"after": retry.after, "count": retry.count, "reason": retry.reason, "error": retry.error}
            self._settle("retry", [retry.id], moved, refused, within=retry.within, **words)
        for park in frame.park:
            self._settle("park", [park.id], moved, refused, reason=park.reason)
        for skip in frame.skip:
            self._settle("skip", [skip.id], moved, refused, reason=skip.reason)
        self._give_back(frame.back, moved, refused)
        return SettledFrame(ref=frame.ref, moved=moved, refused=refused)

    def _settle(
        self,
        how: DeliveryOutcome,
        ids: Sequence[DeliveryId],
        moved: list[DeliveryId],
        refused: list[RefusedDelivery],
        **words: object,
    ) -> None:
        known = self._known(ids, refused)
        late = set(self.consumer.settled(how, list(known.values()), **words)) if known else set()
        for number, delivery in known.items():
            self._close(number)
            if delivery in late:
                refused.append(RefusedDelivery(number, self.consumer.why_refused(delivery)))
            else:
                moved.append(number)

    def _give_back(
        self, ids: Sequence[DeliveryId], moved: list[DeliveryId], refused: list[RefusedDelivery]
    ) -> None:
        known = self._known(ids, refused)
        late = {number: self.consumer.why_refused(each) for number, each in known.items() if not each.is_open}
        self.consumer.give_back([self._close(number) for number in known])
        moved += [number for number in known if number not in late]
        refused += [RefusedDelivery(number, reason) for number, reason in late.items()]

    def extend(self, frame: ExtendFrame) -> SettledFrame:
        """Gives what is open more time; the answer tells of each."""
        refused: list[RefusedDelivery] = []
        known = self._known(frame.deliveries, refused)
        late = set(self.consumer.extend(list(known.values()), frame.seconds))
        refused += [
            RefusedDelivery(number, self.consumer.why_refused(each))
            for number, each in known.items()
            if each in late
        ]
        moved = [number for number, each in known.items() if each not in late]
        return SettledFrame(ref=frame.ref, moved=moved, refused=refused)

    def _known(self, ids: Sequence[DeliveryId], refused: list[RefusedDelivery]) -> dict[DeliveryId, Delivery]:
        known: dict[DeliveryId, Delivery] = {}
        for number in ids:
            delivery = self.open.get(number)
            if delivery is None or number in known:
                refused.append(RefusedDelivery(number, self._gone.get(number, NOT_OPEN_REASON)))
            else:
                known[number] = delivery
        return known
