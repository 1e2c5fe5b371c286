"""Append, read and follow messages: what a `Milepost` does with its log."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any

from milepost.engine.query import query_of
from milepost.errors import InvalidMessage
from milepost.filter import compile_filter
from milepost.log.append import Appender, as_batches, as_message_list
from milepost.log.codec import Codec, MessageDeclarations, check_stream
from milepost.log.message import ANY, Appended, Message
from milepost.log.protocol import Log, TransactionLog
from milepost.log.query import (
    Now,
    Page,
    Query,
    Selection,
    Since,
    check_follow_start,
    check_read_bounds,
    fetch_ahead,
)
from milepost.names import MAX_POSITION_NUMBER

Names = str | Sequence[str]


class MessageMethods(MessageDeclarations, ABC):
    """The methods of `Milepost` for messages. Those for subscriptions are in `milepost.app`."""

    _appender: Appender
    _transaction_log: TransactionLog
    """For a connection of the caller's, which needs no open log."""

    @property
    @abstractmethod
    def log(self) -> Log:
        """The open log; an error if it is not open."""

    @abstractmethod
    async def _check_writer(self, connection: object | None) -> None:
        """Refuse a connection to another database than the log's."""

    @property
    def codec(self) -> Codec:
        """How messages become JSON, and JSON messages. It is for Milepost's own parts."""
        return self._codec

    async def append(
        self,
        stream: str,
        messages: Any,
        *,
        expected: int = ANY,
        connection: object | None = None,
        wake: bool = True,
    ) -> Appended:
        """Appends one message, or several atomically, to a stream named `category-id`.

        Args:
            stream: The stream; a new one begins with its first message.
            messages: An instance of a registered class or a `NewMessage`, or a list of them.
            expected: The version that the stream must have, `NO_STREAM`, `STREAM_EXISTS` or `ANY` (the default).
                Another version raises `WrongVersion`; nothing is written and the transaction stays usable.
            connection: The caller's own connection: the append is part of its transaction.
            wake: False for a transaction that will be PREPAREd, which may not notify.
        """
        await self._check_writer(connection)
        return await self._appender.append(
            self._log_on(connection),
            stream,
            as_message_list(messages),
            expected=expected,
            wake=wake,
            connection=connection,
        )

    async def append_many(
        self,
        messages: Mapping[str, Any],
        *,
        expected: Mapping[str, int] | None = None,
        connection: object | None = None,
        wake: bool = True,
    ) -> dict[str, Appended]:
        """Append to several streams: all or nothing. The result has them in the order given.

        `expected` has a version for each stream that needs one.
        """
        batches = as_batches(messages)
        await self._check_writer(connection)
        return await self._appender.append_many(
            self._log_on(connection), batches, expected=expected or {}, wake=wake, connection=connection
        )

    async def read(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
        connection: object | None = None,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages that are there now, in order, in pages; it never waits.

        One stream is read by version to its last committed message. Anything else is read by position to the
        horizon, behind which no message can appear any more.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position.
            after_version: Only messages with a higher version; for one stream.
            before: Only messages with a lower position; not for one stream.
            before_version: Only messages with a lower version; for one stream.
            since: Only messages of this time or later.
            backwards: The newest first.
            limit: At most so many.
            connection: The caller's own connection, whose transaction is read in; for one stream.
        """
        pages = self.read_pages(
            stream,
            category=category,
            types=types,
            where=where,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=since,
            backwards=backwards,
            limit=limit,
            connection=connection,
        )
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def read_pages(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int = 0,
        after_version: int = 0,
        before: int | None = None,
        before_version: int | None = None,
        since: datetime | None = None,
        backwards: bool = False,
        limit: int | None = None,
        connection: object | None = None,
        looked: Callable[[int], None] = lambda _: None,
    ) -> AsyncGenerator[Page, None]:
        """What `read` gives, in the lists it is fetched in.

        As long as nothing was found, `looked` is told from which position, or version of one stream, to go on.
        """
        check_read_bounds(
            stream,
            limit=limit,
            after=after,
            after_version=after_version,
            before=before,
            before_version=before_version,
            since=since,
        )
        selection = Selection.of(category=category, stream=stream, types=types)
        query = _read_query(selection, where, since=since, backwards=backwards)
        if isinstance(stream, str):
            pages = self._log_on(connection).stream_pages(
                stream,
                query,
                after=after,
                after_version=after_version,
                before_version=MAX_POSITION_NUMBER + 1 if before_version is None else before_version,
                limit=limit,
                connection=connection,
                looked=looked,
            )
        elif connection is not None:
            raise InvalidMessage("stream", "connection is for reading one stream")
        else:
            log = self.log
            horizon = await log.current_horizon()
            high = horizon.position if before is None else min(horizon.position, before - 1)
            pages = fetch_ahead(
                log.pages(query, low=after, high=high, limit=limit, life=horizon.life, looked=looked)
            )
        async with aclosing(pages):
            async for page in pages:
                yield page

    async def follow(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Message[Any], None]:
        """Messages in order, for ever: those there now, then each new one once it is final.

        All followers of a process share one feed. Leaving the loop ends the following.

        Args:
            stream: One stream, or any of several.
            category: One category, or any of several.
            types: One type, or any of several; `*` is one dotted part and `>` is the rest.
            where: A filter over the messages' properties, such as `amount >= 100 && region == "EU"`.
            after: Only messages with a higher position, or `NOW` for those not there yet when the loop begins.
        """
        pages = self.follow_pages(stream, category=category, types=types, where=where, after=after)
        async with aclosing(pages):
            async for page in pages:
                for message in page:
                    yield message

    async def follow_pages(
        self,
        stream: Names | None = None,
        *,
        category: Names | None = None,
        types: Names | None = None,
        where: str | None = None,
        after: int | Now = 0,
    ) -> AsyncGenerator[Page, None]:
        """What `follow` gives, in lists."""
        check_follow_start(after)
        query = _read_query(Selection.of(category=category, stream=stream, types=types), where)
        async with aclosing(self.log.feed.follow(query, after)) as pages:
            async for page in pages:
                yield page

    async def head(self) -> int:
        """The horizon: the position up to which `read` goes now. It never waits."""
        return (await self.log.current_horizon()).position

    async def last(self, stream: str, *, connection: object | None = None) -> int:
        """The version of a stream's last message; 0 if it has none."""
        check_stream(stream)
        return await self._log_on(connection).last_version(stream, connection=connection)

    def _log_on(self, connection: object | None) -> TransactionLog:
        """The log for a connection of the caller's, which need not be open, or the open one."""
        return self.log if connection is None else self._transaction_log


def _read_query(
    selection: Selection, where: str | None, *, since: datetime | None = None, backwards: bool = False
) -> Query:
    compiled = None if where is None else compile_filter(where)
    wanted = None if since is None else Since(since)
    return query_of(selection, compiled, since=wanted, backwards=backwards)
