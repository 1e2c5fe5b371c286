"""A message that a consumer has from a server, and what it can say of it."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from milepost.engine.consuming.verdict import verdict
from milepost.errors import Lost
from milepost.log.message import Message

if TYPE_CHECKING:
    from milepost.client.consumer import Consumer


class Delivery:
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
        consumer: "Consumer",
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
                self._consumer.complain(f"after position {self.position} was settled: {error!r}", error)
            return error is not None
        how, words = ("ack", {}) if error is None else verdict(error, self.message)
        if error is not None:
            self._consumer.tell(self, how, words, error)
        if not self._consumer.settle_soon(self, how, **words):
            self._consumer.complain(str(self.why_lost()))
        return error is not None

    def why_lost(self) -> Lost:
        """The error of whoever settles it too late."""
        why = "was settled before" if self.settled else self.lost
        return Lost(f"the message at position {self.position} {why}")

    def __repr__(self) -> str:
        return f"Delivery(position={self.position}, attempt={self.attempt})"
