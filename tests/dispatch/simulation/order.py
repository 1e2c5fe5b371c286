"""Which message holds its key."""

from dispatch.simulation.holding import Holding
from milepost.dispatch.delivery import State


def lowest_unsettled(holding: Holding, key: str, answers: int | None = None) -> int | None:
    """The lowest message that holds its key in the eyes of this owner, or did after so many answers."""
    for message in holding.store.log.by_key.get(key, ()):
        told_later = answers is not None and holding.retries.get(message.position, 0) > answers
        if not told_later and not is_free(holding, message.position):
            return message.position
    return None


def is_free(holding: Holding, position: int) -> bool:
    """Whether a message does not hold its key."""
    if position in holding.store.settled or position in holding.acked or position in holding.rejected:
        return True
    if position in holding.untold:
        return True
    row, fate = holding.row(position), holding.fates.get(position)
    if row is not None and row.state is State.SKIPPED:
        return True
    if holding.settings.on_park == "block":
        return False
    return bool((fate and fate.may_be_parked) or (row and row.state is State.PARKED))
