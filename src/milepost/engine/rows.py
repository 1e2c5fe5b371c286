"""Brings the messages to rows: progress knows positions, and may be kept elsewhere than the log."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from milepost.dispatch import Answer, HeldKey, LaneState, Loaded
from milepost.log.database import Database
from milepost.log.message import Message
from milepost.log.reader import Reader
from milepost.progress.protocol import Bare

Messages = Mapping[int, Message[Any]]


class Rows:
    """Reads messages by position."""

    def __init__(self, database: Database, reader: Reader) -> None:
        self._database = database
        self._reader = reader

    async def answer(self, answer: Answer[Bare], *, log_life: UUID | None) -> Answer[Message[Any]]:
        """Return an answer with its messages. A row whose message is no longer in the log is left out.

        Raises `Unavailable` if the log's server has another life than this one by now.
        """
        held = [loaded for key in answer.held.values() for loaded in key.rows]
        messages = await self._messages([*held, *answer.due, *answer.unrouted], log_life)
        return Answer(
            moved=answer.moved,
            held={key: HeldKey(_with(messages, held.rows), held.more) for key, held in answer.held.items()},
            due=_with(messages, answer.due),
            next_due=answer.next_due,
            heads_end=answer.heads_end,
            unrouted=_with(messages, answer.unrouted),
            unrouted_end=answer.unrouted_end,
            rows=answer.rows,
            counts=answer.counts,
            streak=answer.streak,
            stalled=answer.stalled,
        )

    async def state(
        self, state: LaneState[Bare], *, unclean: bool, log_life: UUID | None
    ) -> LaneState[Message[Any]]:
        """Return a lane's state with its messages; raises as `answer` does."""
        messages = await self._messages(state.running, log_life)
        return LaneState(
            cursor=state.cursor,
            now=state.now,
            rows=state.rows,
            running=_with(messages, state.running),
            unclean=unclean,
            counts=state.counts,
            streak=state.streak,
            stalled=state.stalled,
        )

    async def messages(self, positions: Sequence[int], log_life: UUID | None = None) -> Sequence[Message[Any]]:
        """Return the messages at these positions, as far as they are still there."""
        return await self._reader.messages_at(self._database, positions, life=log_life) if positions else ()

    async def _messages(self, rows: Iterable[Loaded[Bare]], log_life: UUID | None) -> Messages:
        page = await self.messages(sorted({loaded.row.position for loaded in rows}), log_life)
        return {message.position: message for message in page}


def _with(messages: Messages, rows: Sequence[Loaded[Bare]]) -> list[Loaded[Message[Any]]]:
    return [
        Loaded(loaded.row, messages[loaded.row.position]) for loaded in rows if loaded.row.position in messages
    ]
