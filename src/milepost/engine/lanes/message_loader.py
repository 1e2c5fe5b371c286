"""Load the messages of rows: progress knows positions, and may be in another database than the log."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from milepost.dispatch import ExchangeAnswer, HeldKey, LaneState, LoadedRow
from milepost.engine.declare.order import Order, lanes_and_keys
from milepost.log.message import Message
from milepost.log.protocol import Log
from milepost.progress.protocol import RowLocation, RowOnly

MessagesByPosition = Mapping[int, Message[Any]]


class MessageLoader:
    """Reads messages by position."""

    def __init__(self, log: Log) -> None:
        self._log = log

    async def answer(
        self, answer: ExchangeAnswer[RowOnly], *, log_life: UUID | None
    ) -> ExchangeAnswer[Message[Any]]:
        """Return an answer with its messages. A row whose message is no longer in the log is left out.

        Raises `Unavailable` if the log's server has another life than this one by now.
        """
        held = [loaded for key in answer.held.values() for loaded in key.rows]
        messages = await self._messages([*held, *answer.due, *answer.unrouted], log_life)
        return ExchangeAnswer(
            moved=answer.moved,
            held={
                key: HeldKey(_attach_messages(messages, held.rows), held.more) for key, held in answer.held.items()
            },
            due=_attach_messages(messages, answer.due),
            next_due=answer.next_due,
            heads_end=answer.heads_end,
            unrouted=_attach_messages(messages, answer.unrouted),
            unrouted_end=answer.unrouted_end,
            rows=answer.rows,
            counts=answer.counts,
            streak=answer.streak,
            stalled=answer.stalled,
        )

    async def state(
        self, state: LaneState[RowOnly], *, unclean: bool, log_life: UUID | None
    ) -> LaneState[Message[Any]]:
        """Return a lane's state with its messages; raises as `answer` does."""
        messages = await self._messages(state.running, log_life)
        return LaneState(
            cursor=state.cursor,
            now=state.now,
            rows=state.rows,
            running=_attach_messages(messages, state.running),
            unclean=unclean,
            counts=state.counts,
            streak=state.streak,
            stalled=state.stalled,
        )

    async def messages(self, positions: Sequence[int], log_life: UUID | None = None) -> Sequence[Message[Any]]:
        """Return the messages at these positions, as far as they are still there."""
        return await self._log.messages_at(positions, life=log_life) if positions else ()

    async def _messages(self, rows: Iterable[LoadedRow[RowOnly]], log_life: UUID | None) -> MessagesByPosition:
        page = await self.messages(sorted({loaded.row.position for loaded in rows}), log_life)
        return {message.position: message for message in page}


def _attach_messages(
    messages: MessagesByPosition, rows: Sequence[LoadedRow[RowOnly]]
) -> list[LoadedRow[Message[Any]]]:
    return [
        LoadedRow(loaded.row, messages[loaded.row.position]) for loaded in rows if loaded.row.position in messages
    ]


MAX_ROWS_AT_ONCE = 1000
"""Rows whose messages are in memory together while they are placed."""


class RowPlacer:
    """Finds the lane and the key of stored rows, by an order and a number of lanes."""

    def __init__(self, order: Order, lanes: int, rows: MessageLoader) -> None:
        self._order = order
        self._lanes = lanes
        self._rows = rows

    async def __call__(self, positions: Sequence[int]) -> list[RowLocation]:
        messages = await self._rows.messages(positions)
        lanes, keys = lanes_and_keys(messages, self._order, self._lanes)
        places: dict[int, RowLocation] = {
            message.position: (message.position, lanes[place], None if keys is None else keys[place])
            for place, message in enumerate(messages)
        }
        # What is no longer in the log cannot run, wherever it is.
        return [places.get(position, (position, 0, None)) for position in positions]

    async def all(self, positions: Sequence[int]) -> list[RowLocation]:
        """Place any number of rows, a page at a time."""
        starts = range(0, len(positions), MAX_ROWS_AT_ONCE)
        pages = [positions[start : start + MAX_ROWS_AT_ONCE] for start in starts]
        return [each for page in pages for each in await self(page)]
