"""The server that keeps the store: it may lose its newest transactions, and has another life from then on."""

from collections.abc import Sequence

from msgspec.structs import replace

from dispatch.simulation.evidence import Evidence
from dispatch.simulation.message import Log, Message
from dispatch.simulation.store import Refused, Store
from milepost.dispatch.exchange import Exchange, ExchangeAnswer, HeldKey, LaneState, LoadedRow


class Server:
    """The store in its present life, and what guards it against those who know an earlier one."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def go_back(self, lost: int) -> None:
        """Lose the newest `lost` transactions and begin another life."""
        self.store = self.store.next_life(lost)

    def take(
        self, lane: int, worker: int, definition: int, *, log_life: int, vanished: bool
    ) -> LaneState[Message] | None:
        """Give a lane to a worker; None if it reads the log in another life than the present one."""
        if log_life != self.store.life:
            return None
        return self.store.take(lane, worker, definition, vanished=vanished)

    def commit(
        self,
        lane: int,
        life: int,
        epoch: int,
        revision: int,
        exchange: Exchange[Message],
        evidence: Evidence,
    ) -> ExchangeAnswer[Message] | Refused:
        """Make an exchange of a lane that was taken in this life."""
        if life != self.store.life:
            return Refused.STALE
        return self.store.commit(lane, epoch, revision, exchange, evidence)

    def release(self, lane: int, life: int, epoch: int) -> bool:
        """Release a lane that was taken in this life; return False if it was taken in another."""
        if life != self.store.life:
            return False
        self.store.release(lane, epoch)
        return True

    def loaded(self, log_life: int, answer: ExchangeAnswer[Message]) -> ExchangeAnswer[Message] | None:
        """Bring the messages to the rows of an answer, which only names positions.

        They are read later than the rows. None if the log has another life by then: other messages may be at the
        positions.
        """
        rows = [*answer.due, *answer.unrouted, *(row for held in answer.held.values() for row in held.rows)]
        if rows and log_life != self.store.life:
            return None
        log = self.store.log
        return replace(
            answer,
            held={key: HeldKey(_with_messages(log, held.rows), held.more) for key, held in answer.held.items()},
            due=_with_messages(log, answer.due),
            unrouted=_with_messages(log, answer.unrouted),
        )


def _with_messages(log: Log, rows: Sequence[LoadedRow[Message]]) -> list[LoadedRow[Message]]:
    """The rows whose messages are there, with the messages that are there."""
    messages = log.by_position
    return [LoadedRow(each.row, messages[each.row.position]) for each in rows if each.row.position in messages]
