"""A message that a consumer has, and what it can say of it."""

import traceback
from types import TracebackType
from typing import TYPE_CHECKING, Any

from milepost.dispatch import Delivery as Claim
from milepost.errors import Lost
from milepost.log.message import Message

if TYPE_CHECKING:
    from milepost.engine.consuming.consumer import Consumer


class Delivery:
    """One message on its way to one consumer: it is settled once, by whoever has it, within its time-out.

    As a block it gives the message: `ack` when the block ends, `retry` when it raises. The error is stored with
    the message and logged; the loop goes on.
    """

    __slots__ = ("_claim", "_consumer", "_settled")

    def __init__(self, claim: Claim[Message[Any]], consumer: "Consumer") -> None:
        self._claim = claim
        self._consumer = consumer
        self._settled = False

    @property
    def message(self) -> Message[Any]:
        """What it is about."""
        return self._claim.message

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self._claim.message.position

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._claim.attempt

    @property
    def route(self) -> str | None:
        """The consumer's route that matched: its name, or its expression."""
        return self._claim.route

    @property
    def claim(self) -> Claim[Message[Any]]:
        """What the core knows it by."""
        return self._claim

    async def ack(self) -> None:
        """It is done. Raises `Lost` if it is no longer this consumer's."""
        self._settle("ack")

    async def retry(self, after: float | None = None, reason: str = "") -> None:
        """It failed: it comes again after so many seconds, or as the subscription's policy says."""
        self._settle("retry", after=after, reason=reason)

    async def park(self, reason: str = "") -> None:
        """It is given up until a person decides."""
        self._settle("park", reason=reason)

    async def skip(self, reason: str = "") -> None:
        """It is not wanted: it is done."""
        self._settle("skip", reason=reason)

    async def stop(self, reason: str = "") -> None:
        """It comes again, and this consumer ends: what else it has goes to others."""
        self._settle("stop", reason=reason)

    async def extend(self, seconds: float) -> None:
        """It times out so many seconds from now."""
        if self._consumer.extend([self], seconds):
            raise self._lost()

    async def __aenter__(self) -> Message[Any]:
        return self._claim.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        if self._settled:
            return error is not None and self._consumer.complain(self, error)
        if error is None:
            refused = self._consumer.settled("ack", [self])
        else:
            text = "".join(traceback.format_exception(error))
            reason = f"{kind.__name__ if kind else ''}: {error}"
            refused = self._consumer.settled("retry", [self], reason=reason, error=text)
            self._consumer.complain(self, error)
        if refused:
            self._consumer.journal.warning("%s", self._lost(), position=self.position)
        return error is not None

    def _settle(self, how: str, **words: Any) -> None:
        self._settled = True
        if self._consumer.settled(how, [self], **words):
            raise self._lost()

    def _lost(self) -> Lost:
        return Lost(
            f"the message at position {self.position} is no longer this consumer's: it timed out, or the "
            "subscription moved on"
        )

    def __repr__(self) -> str:
        return f"Delivery(position={self.position}, attempt={self.attempt})"
