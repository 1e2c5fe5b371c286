"""Who writes: Milepost, its SQL function, raw psycopg; each on a connection that it holds."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from time import monotonic_ns
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from benchmarks.logs import Log
from benchmarks.messages import BATCH, CATEGORIES, TYPE, data, properties, stream_name
from milepost import Milepost, NewMessage
from milepost.names import category_hash

_HASHES = [category_hash(f"c{number}") for number in range(CATEGORIES)]
_COLUMNS = "stream_id, version, category_hash, bucket, size, type, data, properties, metadata"
_INSERT = f"""
insert into {{table}} ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, %s, %s) returning "position"
"""
_INSERT_AND_NOTIFY = f"""
with inserted as (
    insert into {{table}} ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s, %s, %s, %s) returning "position"
)
select i."position", pg_notify({{channel}}, '') from inserted i
"""
_COPY = f"copy {{table}} ({_COLUMNS}) from stdin"
_FUNCTION = 'select "position" from {function}(%s, %s, %s, %s)'


class Writer(ABC):
    """Writes to random streams of a log. It is sent to another process before it is opened."""

    messages = 1
    """How many messages one transaction has."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._random = Random(0)
        self._count = 0

    async def open(self, seed: int) -> None:
        """Connects; `seed` tells it from the same writer in other processes."""
        self._random = Random(seed)
        await self._connect()

    @abstractmethod
    async def _connect(self) -> None: ...

    @abstractmethod
    async def write(self) -> int:
        """Writes one transaction; the position of its last message, or 0 if it is not told."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the connection."""

    def _stream(self) -> int:
        return self._random.randrange(self.log.streams)

    def _number(self) -> int:
        self._count += 1
        return self._count


class MilepostWriter(Writer):
    """`await mp.append(stream, message)`."""

    async def _connect(self) -> None:
        self._mp = Milepost(self.log.url, schema=self.log.schema)
        await self._mp.__aenter__()

    async def write(self) -> int:
        """One message to one stream."""
        return (await self._mp.append(stream_name(self._stream()), self._message())).position

    async def close(self) -> None:
        """Closes the pool."""
        await self._mp.__aexit__(None, None, None)

    def _message(self) -> NewMessage:
        number = self._number()
        return NewMessage(TYPE, data(number), properties=properties(number))


class MilepostBatchWriter(MilepostWriter):
    """`await mp.append(stream, [message, …])`."""

    messages = BATCH

    async def write(self) -> int:
        """A batch to one stream."""
        batch = [self._message() for _ in range(BATCH)]
        return (await self._mp.append(stream_name(self._stream()), batch)).position


class MilepostManyWriter(MilepostWriter):
    """`await mp.append_many({stream: message, …})`."""

    messages = BATCH

    async def write(self) -> int:
        """A message to each of many streams."""
        streams = self._random.sample(range(self.log.streams), BATCH)
        appended = await self._mp.append_many({stream_name(stream): self._message() for stream in streams})
        return max(result.position for result in appended.values())


class SyncWriter(Writer):
    """Raw psycopg without an event loop."""

    async def _connect(self) -> None:
        self._connection = psycopg.connect(self.log.url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        self._statement = self._composed()

    @abstractmethod
    def _composed(self) -> sql.Composed: ...

    async def close(self) -> None:
        """Ends the connection."""
        self._connection.close()


class FunctionWriter(SyncWriter):
    """`select … from milepost.append(…)`, as a program in another language would call it."""

    def _composed(self) -> sql.Composed:
        return sql.SQL(_FUNCTION).format(function=self.log.name("append"))

    async def write(self) -> int:
        """One message to one stream."""
        number = self._number()
        parameters = (stream_name(self._stream()), TYPE, *_content(number))
        self._cursor.execute(self._statement, parameters, prepare=True)
        return _first(self._cursor.fetchone())


class RawWriter(SyncWriter):
    """INSERT … RETURNING into a table with the log's columns and indexes; streams are numbers known before."""

    def __init__(self, log: Log, table: str) -> None:
        super().__init__(log)
        self._table = table

    def _composed(self) -> sql.Composed:
        return sql.SQL(_INSERT).format(table=self.log.name(self._table))

    async def write(self) -> int:
        """One row."""
        parameters = _row(self._stream(), monotonic_ns(), self._number())
        self._cursor.execute(self._statement, parameters, prepare=True)
        return _first(self._cursor.fetchone())


class RawNotifyingWriter(RawWriter):
    """The same, with a NOTIFY in each transaction."""

    def _composed(self) -> sql.Composed:
        return sql.SQL(_INSERT_AND_NOTIFY).format(
            table=self.log.name(self._table), channel=sql.Literal(self._table)
        )


class RawCopyWriter(RawWriter):
    """COPY of a batch to one stream."""

    messages = BATCH

    def _composed(self) -> sql.Composed:
        return sql.SQL(_COPY).format(table=self.log.name(self._table))

    async def write(self) -> int:
        """A batch."""
        with self._cursor.copy(self._statement) as copy:
            for row in self._rows():
                copy.write_row(row)
        return 0

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        stream, version = self._stream(), monotonic_ns()
        return (_row(stream, version + place, self._number()) for place in range(BATCH))


class RawCopyManyWriter(RawCopyWriter):
    """COPY of a batch, each row to another stream."""

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        streams, version = self._random.sample(range(self.log.streams), BATCH), monotonic_ns()
        return (_row(stream, version, self._number()) for stream in streams)


class RawAsyncWriter(Writer):
    """INSERT … RETURNING through an async connection, as `mp.append` has one."""

    def __init__(self, log: Log, table: str) -> None:
        super().__init__(log)
        self._table = table

    async def _connect(self) -> None:
        self._connection = await psycopg.AsyncConnection.connect(self.log.url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        self._statement = self._composed()

    def _composed(self) -> sql.Composed:
        return sql.SQL(_INSERT).format(table=self.log.name(self._table))

    async def write(self) -> int:
        """One row."""
        parameters = _row(self._stream(), monotonic_ns(), self._number())
        await self._cursor.execute(self._statement, parameters, prepare=True)
        return _first(await self._cursor.fetchone())

    async def close(self) -> None:
        """Ends the connection."""
        await self._connection.close()


class RawAsyncCopyWriter(RawAsyncWriter):
    """COPY of a batch to one stream, through an async connection."""

    messages = BATCH

    def _composed(self) -> sql.Composed:
        return sql.SQL(_COPY).format(table=self.log.name(self._table))

    async def write(self) -> int:
        """A batch."""
        async with self._cursor.copy(self._statement) as copy:
            for row in self._rows():
                await copy.write_row(row)
        return 0

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        stream, version = self._stream(), monotonic_ns()
        return (_row(stream, version + place, self._number()) for place in range(BATCH))


class RawAsyncCopyManyWriter(RawAsyncCopyWriter):
    """COPY of a batch through an async connection, each row to another stream."""

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        streams, version = self._random.sample(range(self.log.streams), BATCH), monotonic_ns()
        return (_row(stream, version, self._number()) for stream in streams)


def _row(stream: int, version: int, number: int) -> tuple[Any, ...]:
    # Versions only have to be new in their stream: the clock is, without a look into the table.
    return (
        stream + 1,
        version,
        _HASHES[stream % CATEGORIES],
        stream % 1024,
        200,
        TYPE,
        *_content(number),
        "{}",
    )


def _content(number: int) -> tuple[str, str]:
    return msgspec.json.encode(data(number)).decode(), msgspec.json.encode(properties(number)).decode()


def _first(row: Any) -> int:
    return int(row[0])
