"""What becomes of messages by what their handler raised, told instead of done."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from milepost.dispatch import Retry
from milepost.engine.calls import AnyDelivery
from milepost.engine.exactly_once import lost_race_in
from milepost.engine.handler import Undecodable, is_unreadable
from milepost.engine.outcomes import VERSION_RETRY_SECONDS, Failed, Park, RetryLater, Skip
from milepost.engine.tracebacks import reason_of
from milepost.engine.transaction import CannotAppend
from milepost.log.codec import NewerVersion


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a message."""

    state: Literal["done", "skipped", "retrying", "parked", "again"]
    """`again`: it runs again at once, and nothing is counted."""
    reason: str = ""
    after: float | None = None
    """Of a retrying one: seconds until it is tried again."""
    counts: bool = True
    """Of a retrying one: whether this was an attempt."""


DONE = Prospect(state="done")
AT_ONCE = Prospect(state="again")


def prospects(
    error: BaseException | None, deliveries: Sequence[AnyDelivery], retry: Retry, *, transaction: bool
) -> dict[int, Prospect]:
    """By position, for the messages of one call. With a transaction a failed one takes the others back with it."""
    others = AT_ONCE if transaction else DONE
    named: dict[int, BaseException] = {}
    if isinstance(error, Failed):
        named = error.errors
    elif error is not None and len(deliveries) > 1:
        named = {each.message.position: error for each in deliveries if is_unreadable(error, each.message)}
        others = AT_ONCE if named else others
    if not any(delivery.message.position in named for delivery in deliveries):
        return {each.message.position: _prospect(error, each, retry, transaction) for each in deliveries}
    return {
        each.message.position: _prospect(named[each.message.position], each, retry, transaction)
        if each.message.position in named
        else others
        for each in deliveries
    }


def _prospect(error: BaseException | None, delivery: AnyDelivery, retry: Retry, transaction: bool) -> Prospect:
    match error:
        case None:
            return DONE
        case Skip():
            return Prospect(state="skipped", reason=error.reason)
        case Park() | Undecodable():
            return Prospect(state="parked", reason=error.reason)
        case RetryLater():
            return Prospect(state="retrying", reason=error.reason, after=error.seconds, counts=error.count)
        case NewerVersion() if error.is_of(delivery.message):
            return Prospect(state="retrying", reason=str(error), after=VERSION_RETRY_SECONDS, counts=False)
        case CannotAppend():
            return Prospect(state="parked", reason=reason_of(error))
        case _ if transaction and lost_race_in(error):
            return Prospect(state="again", reason=reason_of(error))
        case _:
            return _failed(error, delivery.attempt, retry)


def _failed(error: BaseException, attempt: int, retry: Retry) -> Prospect:
    wait = retry.policy_for(type(error)).wait(attempt, lambda: 0.5)
    if wait is None:
        return Prospect(state="parked", reason=reason_of(error))
    return Prospect(state="retrying", reason=reason_of(error), after=wait)
