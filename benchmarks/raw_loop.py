"""The limit of a drain: raw psycopg that reads the same rows and writes one cursor a page."""

from time import perf_counter
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.logs import Log

PAGE = 1_000
END = 2**63 - 1
"""Above every position."""

# The columns and the forms that Milepost reads. The page is cut before the join: with both in one, PostgreSQL
# joins all the rest of the log for each page once it has settled on a generic plan.
_READ = f"""
select m."position", s.name, m.version, uuid_send(m.id), m.type, timestamptz_send(m.time), m.size,
       m.data::text, m.properties::text, m.metadata::text
from (
    select * from {{messages}} m
    where m."position" > %s and m."position" <= %s
    order by m."position" limit {PAGE}
) m
join {{streams}} s on s.stream_id = m.stream_id
order by m."position"
"""
_CURSORS = 'create table if not exists {cursors} (number integer primary key, "position" bigint not null)'
_BEGIN = """
insert into {cursors} values (%s, %s) on conflict (number) do update set "position" = excluded."position"
"""
_WRITE = 'update {cursors} set "position" = %s where number = %s'
_HEAD = 'select coalesce(max(m."position"), 0) from {messages} m'


class RawLoop:
    """One connection, no event loop, no handler. It knows no horizon, no order and no failure."""

    def __init__(self, log: Log, number: int = 0) -> None:
        self._log = log
        self._number = number
        self._connection = psycopg.connect(log.url, autocommit=True)
        self._cursor = self._connection.cursor(binary=True)
        self._connection.execute(self._composed(_CURSORS))

    def __enter__(self) -> "RawLoop":
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def head(self) -> int:
        """The highest position."""
        row = self._connection.execute(self._composed(_HEAD)).fetchone()
        return 0 if row is None else int(row[0])

    def rate(self, *, after: int = 0) -> float:
        """Rows a second."""
        start = perf_counter()
        return self.drain(after=after) / (perf_counter() - start)

    def drain(self, *, after: int = 0, until: int = END) -> int:
        """How many rows there were above one position, up to another."""
        read, write = self._composed(_READ), self._composed(_WRITE)
        self._connection.execute(self._composed(_BEGIN), [self._number, after])
        count, position = 0, after
        while rows := self._page(read, position, until):
            count += len(rows)
            position = rows[-1][0]
            self._connection.execute(write, [position, self._number], prepare=True)
        return count

    def _page(self, read: sql.Composed, after: int, until: int) -> list[tuple[Any, ...]]:
        self._cursor.execute(read, [after, until], prepare=True)
        return self._cursor.fetchall()

    def _composed(self, text: str) -> sql.Composed:
        names = {"messages": "messages", "streams": "streams", "cursors": "raw_cursors"}
        return sql.SQL(text).format(**{part: self._log.name(name) for part, name in names.items()})
