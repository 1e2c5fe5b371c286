"""Progress in PostgreSQL: a statement for each call."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain, pairwise
from typing import Any

import msgspec

from milepost.dispatch import Answer, Ask, Counts, Cursor, Exchange, LaneState, Loaded, Tally, Write
from milepost.log import schema
from milepost.log.connections import Executor, executor_of
from milepost.log.database import Database, driver
from milepost.log.statements import Statements
from milepost.progress.findings import Found
from milepost.progress.protocol import Bare, Definition, Exchanged, Held, Opened
from milepost.progress.refusals import refusals, stale
from milepost.progress.storable import storable

PROGRAM = f"milepost {version('milepost')}"

_CLEANED_EVERY = 64
"""Every so many revisions of a lane, the function that removes old ones does the write."""
_NEVER = 2**62


class _Reply(msgspec.Struct, frozen=True):
    """What an exchange gives back."""

    now: float
    moved: list[bool]
    found: Found | None
    rows: bool
    counts: Counts
    streak: int | None
    stalled: str | None


class _Lane(msgspec.Struct, frozen=True):
    """A lane that was taken."""

    lane: int
    epoch: int
    revision: int
    previous: int | None
    position: int
    ahead: list[int]
    unclean: bool
    rows: bool
    running: list[Loaded[Bare]]


class _Taken(msgspec.Struct, frozen=True):
    """What taking lanes gives back."""

    now: float
    lanes: list[_Lane]
    counts: Counts
    streak: int
    stalled: str | None


_replies = msgspec.json.Decoder(_Reply)
_taken = msgspec.json.Decoder(_Taken | None)
_opened = msgspec.json.Decoder(list[Opened])


class PostgresProgress:
    """Progress in a schema of a database, which whoever made it opens and closes."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress")

    async def open(self) -> None:
        """Raises `SchemaMismatch` unless the schema is there."""
        async with self._database.connection() as connection:
            with driver():
                await schema.check(connection, self._statements.schema)

    async def close(self) -> None:
        """Nothing is kept open."""

    async def now(self) -> float:
        """The time that decides, in seconds since 1970."""
        rows = await self._database.execute(self._statements.get("now"), {})
        return float(rows[0][0])

    async def declare(self, definitions: Sequence[Definition]) -> list[Opened]:
        """Creates what is new, and tells what is there; safe from many processes at once."""
        given = [_as_declared(definition) for definition in definitions]
        rows = await self._database.execute(
            self._statements.get("declare"), {"definitions": _json(given), "program": PROGRAM}
        )
        return _opened.decode(rows[0][0])

    async def take(self, subscription: int, lanes: Collection[int]) -> list[Held]:
        """Fences whoever had these lanes. One whose owner is just writing may be missing: it is for later."""
        rows = await self._database.execute(
            self._statements.get("take"), {"subscription": subscription, "lanes": sorted(lanes)}
        )
        taken = _taken.decode(rows[0][0]) if rows[0][0] is not None else None
        return [_held(subscription, lane, taken) for lane in taken.lanes] if taken else []

    async def exchange(
        self, held: Held, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> Exchanged:
        """One transaction: what is to be written, then what is asked."""
        executor = self._database if connection is None else executor_of(connection)
        write = exchange.write
        if write is not None and exchange.ask is None and _is_plain(write, held.revision):
            return await self._write_cursor(executor, held, write)
        return await self._exchange(
            executor, held, write, exchange.ask, stall_after=stall_after, continues=on_park == "continue"
        )

    async def release(self, held: Held, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner. What it says of failures is counted; whether they stall is for the next."""
        if exchange is not None and exchange.write is not None:
            await self._exchange(self._database, held, exchange.write, None, released=True)
            return
        with refusals():
            rows = await self._database.execute(self._statements.get("release"), _named(held))
        if not rows:
            raise stale()

    async def _write_cursor(self, executor: Executor, held: Held, write: Write) -> Exchanged:
        parameters = _named(held)
        parameters["position"] = write.cursor.position
        parameters["ahead"] = _flat(write.cursor)
        with refusals():
            rows = await executor.execute(self._statements.get("write_cursor"), parameters)
        if not rows:
            raise stale()
        now, streak, stalled, has_rows, waiting, retrying, unrouted = rows[0]
        if write.tally.succeeded and (streak or stalled):
            await executor.execute(self._statements.get("recover"), {"subscription": held.subscription})
            streak, stalled = 0, None
        counts = Counts(waiting, retrying, unrouted)
        answer: Answer[Bare] = Answer(rows=has_rows, counts=counts, streak=streak or 0, stalled=stalled)
        return Exchanged(_next(held), answer, now)

    async def _exchange(
        self,
        executor: Executor,
        held: Held,
        write: Write | None,
        ask: Ask | None,
        *,
        stall_after: int = _NEVER,
        continues: bool = False,
        released: bool = False,
    ) -> Exchanged:
        tally = write.tally if write else Tally()
        parameters = _named(held) | {
            "writes": write is not None,
            "position": write.cursor.position if write else None,
            "ahead": _flat(write.cursor) if write else None,
            "moves": _json(storable(write.moves)) if write and write.moves else None,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "released": released,
            "ask": None if ask is None else _json(ask),
            "stall_after": stall_after,
            "continues": continues,
        }
        with refusals():
            rows = await executor.execute(self._statements.get("exchange"), parameters)
        reply = _replies.decode(rows[0][0])
        return Exchanged(held if write is None else _next(held), _answer(reply, ask), reply.now)


def _answer(reply: _Reply, ask: Ask | None) -> Answer[Bare]:
    told = reply.found.answers(ask) if ask is not None and reply.found is not None else {}
    return Answer(
        moved=reply.moved,
        rows=reply.rows,
        counts=reply.counts,
        streak=reply.streak or 0,
        stalled=reply.stalled,
        **told,
    )


def _is_plain(write: Write, revision: int) -> bool:
    """Whether all that is written is a cursor."""
    return not write.moves and not write.tally.failed and (revision + 1) % _CLEANED_EVERY != 0


def _next(held: Held) -> Held:
    return replace(held, revision=held.revision + 1)


def _named(held: Held) -> dict[str, Any]:
    """What a write names: the lane, and the epoch and the revision that it replaces."""
    return {
        "subscription": held.subscription,
        "lane": held.lane,
        "epoch": held.epoch,
        "revision": held.revision,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _flat(cursor: Cursor) -> list[int]:
    return list(chain.from_iterable(cursor.ahead))


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(flat))[::2]


def _as_declared(definition: Definition) -> Mapping[str, Any]:
    return {
        "group": definition.group,
        "name": definition.name,
        "lanes": definition.lanes,
        "selects": definition.selects,
        "orders": definition.orders,
        "position": definition.start.position,
        "ahead": _flat(definition.start),
        "renamed_from": definition.renamed_from,
    }


def _held(subscription: int, lane: _Lane, taken: _Taken) -> Held:
    state = LaneState(
        cursor=Cursor(lane.position, _pairs(lane.ahead)),
        now=taken.now,
        rows=lane.rows,
        running=lane.running,
        unclean=lane.unclean,
        counts=taken.counts,
        streak=taken.streak,
        stalled=taken.stalled,
    )
    return Held(
        subscription=subscription,
        lane=lane.lane,
        epoch=lane.epoch,
        revision=lane.revision,
        previous=lane.previous,
        state=state,
    )
