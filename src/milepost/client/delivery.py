"""A delivery that a consumer has from a server, and the settlements that are not confirmed yet."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from milepost.engine.consumers.delivery import settlement_for_error
from milepost.engine.observe.statistics import DeliveryOutcome
from milepost.errors import Lost
from milepost.log.message import Message
from milepost.wire.frames import DeliveryId, RefusedDelivery, SettledFrame

if TYPE_CHECKING:
    from milepost.client.consumer import ClientConsumer


MAX_SETTLEMENTS_PER_FRAME: Final = 1000
"""Settlements of one frame."""
MAX_SETTLE_FRAME_BYTES: Final = 500_000
"""What they may say together; a server takes frames of a MiB."""
MAX_ERROR_CHARACTERS: Final = 8192
"""Characters of an error that are sent, which is what is kept of it."""


@dataclass(eq=False)
class UnconfirmedSettlement:
    """How one delivery is to end, or that it takes longer."""

    delivery: "ClientDelivery"
    how: DeliveryOutcome | Literal["back"] | None
    """None: it is extended. "back": nobody has begun with it."""
    words: dict[str, Any] = field(default_factory=dict)
    answer: "asyncio.Future[str | None] | None" = None
    """Why it was refused, if it was; nobody may wait for that."""

    @property
    def size(self) -> int:
        """How much of a frame it takes, at the most."""
        return 100 + 6 * sum(len(word) for word in self.words.values() if isinstance(word, str))

    def resolve(self, refusal: str | None) -> None:
        """The server has answered, or never will."""
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(refusal)


class UnconfirmedSettlements:
    """Those that are to be sent, those that were sent, and those of a connection that broke before the answer."""

    def __init__(self) -> None:
        self._waiting: list[UnconfirmedSettlement] = []
        self._sent: dict[int, list[UnconfirmedSettlement]] = {}
        self._unsure: list[UnconfirmedSettlement] = []
        self._refs = 0

    def __bool__(self) -> bool:
        return bool(self._waiting or self._sent or self._unsure)

    @property
    def is_waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._waiting)

    def add(self, settlement: UnconfirmedSettlement) -> None:
        """One more to be sent."""
        self._waiting.append(settlement)

    def frames(self) -> Iterator[dict[str, Any]]:
        """What is to be sent, as frames of a bounded size; it counts as sent."""
        while self._waiting:
            batch = self._next_batch()
            self._refs += 1
            self._sent[self._refs] = batch
            yield _settlements_frame(batch, self._refs)

    def _next_batch(self) -> list[UnconfirmedSettlement]:
        """The first ones that go together: extending is a frame of its own, for one time."""
        first, size, count = self._waiting[0], 0, 0
        for each in self._waiting:
            if count and (
                _frame_group(each) != _frame_group(first)
                or count == MAX_SETTLEMENTS_PER_FRAME
                or size + each.size > MAX_SETTLE_FRAME_BYTES
            ):
                break
            size, count = size + each.size, count + 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def answered(self, answer: SettledFrame) -> list[tuple[UnconfirmedSettlement, str | None]]:
        """What became of each in the frame that is answered: why it was refused, or None."""
        batch = self._sent.pop(answer.ref, []) if isinstance(answer.ref, int) else []
        refused = {each.id: each.reason for each in answer.refused}
        moved = set(answer.moved)
        return [
            (each, None if each.delivery.id in moved else refused.get(each.delivery.id, "is no longer known"))
            for each in batch
        ]

    def failed(self, ref: object) -> list[UnconfirmedSettlement]:
        """A frame had no effect."""
        return self._sent.pop(ref, []) if isinstance(ref, int) else []

    def connection_lost(self) -> None:
        """The connection broke: of what was sent nobody knows."""
        self._unsure += [each for batch in self._sent.values() for each in batch]
        self._sent.clear()

    def resumed(self, still_open: set[DeliveryId]) -> None:
        """What the server still has open it has not been told: it is sent again."""
        again = [each for each in self._unsure if each.delivery.id in still_open]
        self._unsure = [each for each in self._unsure if each.delivery.id not in still_open]
        self._waiting = again + self._waiting

    def take_confirmed(self) -> list[UnconfirmedSettlement]:
        """The server has told all that it took away meanwhile: what is left was settled by what was sent."""
        confirmed, self._unsure = self._unsure, []
        return confirmed

    def remove_lost(self, lost: Sequence[RefusedDelivery]) -> list[tuple[UnconfirmedSettlement, str]]:
        """Those of deliveries that are lost; they are forgotten."""
        reasons = {each.id: each.reason for each in lost}
        found = [each for each in (*self._waiting, *self._unsure) if each.delivery.id in reasons]
        self._waiting = [each for each in self._waiting if each.delivery.id not in reasons]
        self._unsure = [each for each in self._unsure if each.delivery.id not in reasons]
        return [(each, reasons[each.delivery.id]) for each in found]

    def all(self) -> list[UnconfirmedSettlement]:
        """Everything that is not answered, which never will be; it is forgotten."""
        self.connection_lost()
        found, self._waiting, self._unsure = [*self._unsure, *self._waiting], [], []
        return found


def _frame_group(settlement: UnconfirmedSettlement) -> object:
    return settlement.words.get("seconds") if settlement.how is None else "settle"


def _settlements_frame(batch: Sequence[UnconfirmedSettlement], ref: int) -> dict[str, Any]:
    if batch[0].how is None:
        ids = [each.delivery.id for each in batch]
        return {"type": "extend", "ref": ref, "deliveries": ids, "seconds": batch[0].words["seconds"]}
    frame: dict[str, Any] = {"type": "settle", "ref": ref}
    for each in batch:
        of_kind = frame.setdefault(str(each.how), [])
        of_kind.append(each.delivery.id if each.how in ("ack", "back") else {"id": each.delivery.id, **each.words})
    return frame


class ClientDelivery:
    """One message on its way to one consumer: it is settled once, by whoever has it, within its time-out.

    As a block it gives the message: `ack` when the block ends, `retry` when it raises, or what `Park`, `Skip` and
    `RetryLater` say. A block does not wait for the server: what comes too late is logged. `ack` and the others do
    wait, and raise `Lost`.
    """

    __slots__ = (
        "_consumer",
        "arrived",
        "attempt",
        "begun",
        "id",
        "lost",
        "message",
        "replay",
        "route",
        "settled",
        "since",
    )

    def __init__(
        self,
        consumer: "ClientConsumer",
        message: Message[Any],
        *,
        id: int,
        attempt: int,
        route: str,
        replay: bool,
        since: float,
    ) -> None:
        self._consumer = consumer
        self.message = message
        """What it is about."""
        self.id = id
        """What the server calls it."""
        self.attempt = attempt
        """Which attempt this is, from 1."""
        self.route = route
        """The consumer's route that matched: its name, or its expression."""
        self.replay = replay
        """Whether the message had been handled before, and is repeated on purpose."""
        self.arrived = since
        """When it came, by the clock of this process."""
        self.since = since
        """When it came, or was last kept for its consumer's user, by the clock of this process."""
        self.begun: float | None = None
        """When its user got it."""
        self.settled = False
        """Whether its consumer has said what becomes of it."""
        self.lost: str | None = None
        """Why it is no longer this consumer's, as the end of a sentence."""

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.message.position

    async def ack(self) -> None:
        """It is done. Raises `Lost` if it is no longer this consumer's."""
        await self._consumer.settle_one(self, "ack")

    async def retry(self, after: float | None = None, reason: str = "", *, count: bool = True) -> None:
        """It failed: it comes again after so many seconds, or as the subscription's policy says.

        With `count=False` it is no attempt, and comes again after `after` seconds, at once by default.
        """
        await self._consumer.settle_one(self, "retry", after=after, reason=reason, count=count)

    async def park(self, reason: str = "") -> None:
        """It is given up until a person decides."""
        await self._consumer.settle_one(self, "park", reason=reason)

    async def skip(self, reason: str = "") -> None:
        """It is not wanted: it is done."""
        await self._consumer.settle_one(self, "skip", reason=reason)

    async def stop(self, reason: str = "") -> None:
        """It comes again, which counts as an attempt, and this consumer ends: what else it has goes to others."""
        await self._consumer.settle_one(self, "retry", reason=reason)
        await self._consumer.stop()

    async def extend(self, seconds: float) -> None:
        """It times out so many seconds from now."""
        await self._consumer.extend(self, seconds)

    async def __aenter__(self) -> Message[Any]:
        return self.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        if self.settled:
            if error is not None:
                self._consumer.warn(f"after position {self.position} was settled: {error!r}", error)
            return error is not None
        how, words = ("ack", {}) if error is None else settlement_for_error(error, self.message)
        if error is not None:
            self._consumer.log_failure(self, how, words, error)
        if not self._consumer.settle_soon(self, how, **words):
            self._consumer.warn(str(self.lost_error()))
        return error is not None

    def lost_error(self) -> Lost:
        """The error of whoever settles it too late."""
        why = "was settled before" if self.settled else self.lost
        return Lost(f"the message at position {self.position} {why}")

    def __repr__(self) -> str:
        return f"Delivery(position={self.position}, attempt={self.attempt})"
