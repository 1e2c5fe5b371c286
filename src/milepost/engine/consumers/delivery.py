"""A delivery: one message that a consumer has, and the ways to settle it."""

from types import TracebackType
from typing import TYPE_CHECKING, Any

from milepost.engine.checks import checked, optional, seconds
from milepost.engine.declare.handler import AnyDelivery
from milepost.engine.declare.outcomes import VERSION_RETRY_SECONDS, VERSION_WAIT_SECONDS, Park, RetryLater, Skip
from milepost.engine.observe.statistics import DeliveryOutcome
from milepost.engine.tracebacks import reason_of, traceback_of
from milepost.errors import Lost
from milepost.log.codec import NewerVersion
from milepost.log.message import Message

if TYPE_CHECKING:
    from milepost.engine.consumers.consumer import Consumer


def settlement_for_error(error: Exception, message: Message[Any]) -> tuple[DeliveryOutcome, dict[str, Any]]:
    """How it is settled, and with which words: what a decision says, and a retry for any other error."""
    match error:
        case Park():
            return "park", {"reason": error.reason}
        case Skip():
            return "skip", {"reason": error.reason}
        case RetryLater():
            return "retry", {"after": error.seconds, "count": error.count, "reason": error.reason}
        case NewerVersion() if error.is_of(message):
            waits = {"after": VERSION_RETRY_SECONDS, "within": VERSION_WAIT_SECONDS}
            return "retry", {**waits, "count": False, "reason": str(error)}
    return "retry", {"reason": reason_of(error), "error": traceback_of(error)}


RETRY_AFTER = optional(seconds())
"""What may be said of when a delivery comes again; None: as the subscription's policy says."""
EXTEND_BY = seconds(more=True)


class Delivery:
    """One message on its way to one consumer: it is settled once, by whoever has it, within its time-out.

    As a block it gives the message: `ack` when the block ends, `retry` when it raises, or what `Park`, `Skip` and
    `RetryLater` say. The error is stored with the message and logged; the loop goes on.
    """

    __slots__ = ("_consumer", "claim", "settled", "since")

    def __init__(self, claim: AnyDelivery, consumer: "Consumer", since: float) -> None:
        self.claim = claim
        """What the core knows it by."""
        self.since = since
        """When it came to its consumer, by the clock of this process."""
        self.settled = False
        """Whether its consumer has said what becomes of it."""
        self._consumer = consumer

    @property
    def message(self) -> Message[Any]:
        """What it is about."""
        return self.claim.message

    @property
    def position(self) -> int:
        """Of the message, in the log."""
        return self.claim.message.position

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claim.attempt

    @property
    def route(self) -> str:
        """The consumer's route that matched: its name, or its expression."""
        return self._consumer.route_of(self.claim)

    @property
    def replay(self) -> bool:
        """Whether the message had been handled before, and is repeated on purpose."""
        return self._consumer.dispatcher.is_replay(self.claim.message)

    @property
    def is_open(self) -> bool:
        """Whether it can still be settled."""
        return not self.settled and self.claim.is_in_force

    async def ack(self) -> None:
        """It is done. Raises `Lost` if it is no longer this consumer's."""
        if not self._consumer.ack(self):
            raise self._lost()

    async def retry(self, after: float | None = None, reason: str = "", *, count: bool = True) -> None:
        """It failed: it comes again after so many seconds, or as the subscription's policy says.

        With `count=False` it is no attempt, and comes again after `after` seconds, at once by default.
        """
        checked("after", RETRY_AFTER, after)
        self._settle("retry", after=after, reason=reason, count=count)

    async def park(self, reason: str = "") -> None:
        """It is given up until a person decides."""
        self._settle("park", reason=reason)

    async def skip(self, reason: str = "") -> None:
        """It is not wanted: it is done."""
        self._settle("skip", reason=reason)

    async def stop(self, reason: str = "") -> None:
        """It comes again, which counts as an attempt, and this consumer ends: what else it has goes to others."""
        self._settle("retry", reason=reason)
        self._consumer.stop()

    async def extend(self, seconds: float) -> None:
        """It times out so many seconds from now."""
        checked("seconds", EXTEND_BY, seconds)
        if self._consumer.extend([self], seconds):
            raise self._lost()

    async def __aenter__(self) -> Message[Any]:
        return self.claim.message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            if not self.settled and not self._consumer.ack(self):
                self._consumer.logger.warning("%s", self._lost(), position=self.position)
            return False
        if not isinstance(error, Exception):
            return False
        if self.settled:
            self._consumer.logger.error("after position %d was settled: %r", self.position, error)
        elif self._refused(error):
            self._consumer.logger.warning("%s", self._lost(), position=self.position)
        return True

    def _refused(self, error: Exception) -> bool:
        """Settles it by what a block raised; whether that was too late."""
        how, words = settlement_for_error(error, self.message)
        if "error" in words:
            words["raised"] = error
        return bool(self._consumer.settled(how, [self], **words))

    def _settle(self, how: Any, **words: Any) -> None:
        if self._consumer.settled(how, [self], **words):
            raise self._lost()

    def _lost(self) -> Lost:
        return Lost(f"the message at position {self.position} {self._consumer.why_refused(self)}")

    def __repr__(self) -> str:
        return f"Delivery(position={self.position}, attempt={self.attempt})"
