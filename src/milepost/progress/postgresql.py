"""Progress in PostgreSQL: a statement for each call."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import chain, pairwise
from typing import Any
from uuid import UUID

import msgspec
import psycopg

from milepost.dispatch import Answer, Ask, Counts, Cursor, Exchange, LaneState, Loaded, Tally, Write
from milepost.errors import MilepostError, Unavailable
from milepost.log import schema
from milepost.log.connections import Executor, executor_of
from milepost.log.database import Database, driver
from milepost.log.statements import Statements, as_array
from milepost.progress import changes
from milepost.progress.changes import Defined
from milepost.progress.deadlocks import despite_deadlocks
from milepost.progress.findings import Found
from milepost.progress.memories import Memory
from milepost.progress.protocol import (
    Bare,
    Definition,
    Exchanged,
    Held,
    Opened,
    Outdated,
    Places,
    RolledBack,
    Serving,
    Sign,
    Stale,
)
from milepost.progress.refusals import of_this_life, refusals, stale
from milepost.progress.reports import Report, StoppedLane, Told
from milepost.progress.standing import LaneStanding, Standing
from milepost.progress.storable import storable
from milepost.ranges import NOTHING, Ranges

_Claim = tuple[int, int, int, int]
"""A lane of a subscription, in the hands of an owner who has written it so often."""

PROGRAM = f"milepost {version('milepost')}"

PATIENCE = "5s"
"""How long a transaction may stand still between its last write and its commit."""

REPORT = timedelta(seconds=10)
"""How long what a worker has told is taken for what it does."""
ROWS = 1000
"""How many rows are looked at together when they get other keys."""


_CONTRADICTS = "MP004"
TRIES = 3
"""How often one of several cursors is written that was rolled back: the others hold already."""
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
    replay: list[int]


class _Taken(msgspec.Struct, frozen=True):
    """What taking lanes gives back."""

    now: float
    lanes: list[_Lane]
    counts: Counts
    streak: int
    stalled: str | None
    memories: list[Memory] | None


class _Cursors(msgspec.Struct, frozen=True):
    """The cursors of a subscription's lanes."""

    positions: list[int]
    """Of each lane."""
    aheads: dict[int, list[int]] | None
    """Of the lanes that are done with something ahead of theirs."""


class _Owner(msgspec.Struct, frozen=True):
    """Some lanes, and the live worker that may try them."""

    worker: str | None
    """None: nobody may, or it does not live any more."""
    lanes: list[int]
    since: list[datetime]


class _Holder(msgspec.Struct, frozen=True):
    """A live worker that has some lanes."""

    worker: str
    lanes: list[int]


class _Stored(msgspec.Struct, frozen=True):
    """A subscription as it is stored."""

    id: int
    group: str
    name: str
    status: str
    barrier: str | None
    stalled: str | None
    waiting: int
    retrying: int
    unrouted: int
    parked: int
    told: Told
    cursors: _Cursors
    owners: list[_Owner] | None
    holders: list[_Holder] | None
    """Those with the newest definition come last."""
    replays: dict[int, list[int]] | None
    outdated: list[str]
    stopped: list[StoppedLane]
    settings: dict[str, Any] | None
    consumers: int
    standby: list[str]


class _Declared(Opened, frozen=True, kw_only=True):
    """What declaring a subscription gives back."""

    renamed: str | None
    was: Defined | None
    from_: int | None = msgspec.field(name="from")


class _Reordered(msgspec.Struct, frozen=True):
    """What putting another order in force gives back."""

    was: Defined
    from_: int = msgspec.field(name="from")
    up_to: int


_replies = msgspec.json.Decoder(_Reply)
_taken = msgspec.json.Decoder(_Taken | None)
_declared = msgspec.json.Decoder(list[_Declared])
_reordered = msgspec.json.Decoder(_Reordered)
_opened = msgspec.json.Decoder(Opened)
_stored = msgspec.json.Decoder(_Stored)


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

    async def life(self) -> UUID | None:
        """The present life of the server."""
        rows = await self._database.execute(self._statements.get("life"), {})
        life: UUID = rows[0][0]
        return life

    async def follow(self, log_life: UUID, survived_since: Callable[[UUID], int]) -> None:
        """Nothing has to be done: progress went back with the log."""

    async def declare(self, definitions: Sequence[Definition], sign: Sign | None = None) -> list[Opened]:
        """Creates what is new, and tells what is there; safe from many processes at once."""
        parameters = {
            "definitions": _json([as_declared(definition) for definition in definitions]),
            "program": PROGRAM,
            **_signed(sign),
        }
        found = _declared.decode(await self._declare(parameters))
        return [_told(*pair) for pair in zip(found, definitions, strict=True)]

    async def _declare(self, parameters: Mapping[str, Any]) -> str:
        statement = self._statements.get("declare")
        with contradictions(), of_this_life():
            # It fences lanes, whose owners may be about to write to the subscription.
            rows = await despite_deadlocks(lambda: self._database.execute(statement, parameters))
        return str(rows[0][0])

    async def known(self, group: str) -> set[str]:
        """The names of the subscriptions of a group."""
        rows = await self._database.execute(self._statements.get("known"), {"group": group})
        return {row[0] for row in rows}

    async def look(self, sign: Sign, serving: Sequence[Serving]) -> dict[int, Opened]:
        """These subscriptions as workers of definitions of these numbers have to know them now."""
        parameters = {"serving": _json(serving), **_signed(sign)}
        rows = await self._database.execute(self._statements.get("look"), parameters)
        found = [_opened.decode(row[0]) for row in rows]
        return {opened.id: opened for opened in found}

    async def leave(self, worker: str) -> None:
        """A worker does nothing any more."""
        await self._database.execute(self._statements.get("depart"), {"worker": worker})

    async def reorder(
        self, subscription: int, definition: Definition, places: Places, sign: Sign | None = None
    ) -> str | None:
        """Puts another order, or other lanes, in force."""
        rows = [row async for page in self._pages_of_rows(subscription) for row in await places(page)]
        parameters = {
            "subscription": subscription,
            "definition": _json(as_declared(definition)),
            "rows": _json([{"position": at, "lane": lane, "key": key} for at, lane, key in rows]),
            "program": PROGRAM,
            **_signed(sign),
        }
        with of_this_life():
            found = await self._database.within(None).execute(self._statements.get("reorder"), parameters)
        if found[0][0] is None:
            return None
        done = _reordered.decode(found[0][0])
        return changes.ordered_otherwise(done.was, _defined(definition), done.from_, done.up_to - done.from_)

    async def _pages_of_rows(self, subscription: int) -> AsyncIterator[list[int]]:
        """The positions of all rows, some at a time."""
        after = 0
        while True:
            parameters = {"subscription": subscription, "after": after, "limit": ROWS}
            rows = await self._database.within(None).execute(self._statements.get("row_positions"), parameters)
            if not rows:
                return
            yield [row[0] for row in rows]
            after = rows[-1][0]

    async def take(
        self,
        subscription: int,
        lanes: Collection[int],
        number: int | None = None,
        acted: int | None = None,
        *,
        worker: str | None = None,
        log_life: UUID | None = None,
    ) -> list[Held]:
        """Fences whoever had these lanes. One whose owner is just writing may be missing: it is for later."""
        parameters = {
            "log_life": log_life,
            "subscription": subscription,
            "lanes": sorted(lanes),
            "number": number,
            "acted": acted,
            "worker": worker,
        }
        rows = await self._database.execute(self._statements.get("take"), parameters)
        if rows and rows[0][1] is not None:
            raise Outdated(rows[0][1])
        taken = _taken.decode(rows[0][0]) if rows and rows[0][0] is not None else None
        if taken is None:
            return []
        return [_held(subscription, lane, taken, worker, rows[0][2]) for lane in taken.lanes]

    async def exchange(
        self, held: Held, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> Exchanged:
        """One transaction: what is to be written, then what is asked."""
        executor = self._database if connection is None else executor_of(connection)
        write = exchange.write
        if write is not None and exchange.ask is None and _is_plain(write, held.revision):
            [written] = await self._write_cursors(executor, [(held, write)])
            if written is None:
                raise stale()
            return written
        return await self._exchange(
            executor, held, write, exchange.ask, stall_after=stall_after, continues=on_park == "continue"
        )

    async def release(self, held: Held, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner. What it says of failures is counted; whether they stall is for the next."""
        try:
            if exchange is None or exchange.write is None:
                with refusals():
                    parameters = _named(held) | {"worker": held.worker}
                    if not await self._database.execute(self._statements.get("release"), parameters):
                        raise stale()
                return
            await self._exchange(self._database, held, exchange.write, None, released=True)
        except Stale:
            await self._let_go(held)
            raise
        await self._let_go(held)

    async def _let_go(self, held: Held) -> None:
        parameters = {"subscription": held.subscription, "lane": held.lane, "worker": held.worker}
        await self._database.execute(self._statements.get("let_go"), parameters)

    async def report(self, worker: str, reports: Sequence[Report]) -> None:
        """What a worker does."""
        parameters = {"worker": worker, "reports": _json(reports), "during": REPORT}
        await self._database.execute(self._statements.get("report"), parameters)

    async def standings(self, group: str | None = None, name: str | None = None) -> list[Standing]:
        """How all subscriptions stand, or the one of this group and name, in the order of their addresses."""
        parameters = {"group": group, "name": name}
        rows = await self._database.within(None).execute(self._statements.get("standings"), parameters)
        return [_standing(_stored.decode(row[0])) for row in rows]

    async def write(self, cursors: Sequence[tuple[Held, Write]]) -> list[Exchanged | None]:
        """Cursors and nothing else; None stands for a lane that has another owner."""
        plain = [(held, write) for held, write in cursors if _is_plain(write, held.revision)]
        found: dict[_Claim, Exchanged | None] = {}
        # Somebody may write one of them at the same moment; which, each says by itself then.
        with suppress(Stale):
            written = await self._write_cursors(self._database, plain)
            found = {_claim(held): one for (held, _), one in zip(plain, written, strict=True)}
        for held, write in cursors:
            if _claim(held) not in found:
                found[_claim(held)] = await self._write_alone(held, write, is_first=not found)
        return [found.get(_claim(held)) for held, _ in cursors]

    async def _write_alone(self, held: Held, write: Write, *, is_first: bool) -> Exchanged | None:
        """Writes one of several; when it cannot be written, others before it may have been."""
        for _ in range(TRIES):
            try:
                return await self._exchange(self._database, held, write, None)
            except Stale:
                return None
            except RolledBack:
                if is_first:
                    raise
            except Unavailable:
                if is_first:
                    raise
                return None
        return None

    async def _write_cursors(
        self, executor: Executor, cursors: Sequence[tuple[Held, Write]]
    ) -> list[Exchanged | None]:
        if not cursors:
            return []
        parameters = {
            "subscriptions": as_array(held.subscription for held, _ in cursors),
            "lanes": as_array(held.lane for held, _ in cursors),
            "lives": as_array(str(held.life) for held, _ in cursors),
            "epochs": as_array(held.epoch for held, _ in cursors),
            "revisions": as_array(held.revision for held, _ in cursors),
            "positions": as_array(write.cursor.position for _, write in cursors),
            "aheads": [_array(write.cursor) for _, write in cursors],
            "patience": PATIENCE,
        }
        with refusals():
            rows = await executor.execute(self._statements.get("write_cursors"), parameters)
        told = {row[:4]: row[4:] for row in rows}
        succeeded = {held.subscription for held, write in cursors if write.tally.succeeded}
        recovering = {row[0] for row in rows if row[5] or row[6]} & succeeded
        for subscription in sorted(recovering):
            await executor.execute(self._statements.get("recover"), {"subscription": subscription})
        return [
            _written(held, told.get(_claim(held)), recovers=held.subscription in recovering) for held, _ in cursors
        ]

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
            "keep_done": write.keep_done if write else None,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "released": released,
            "ask": None if ask is None else _json(ask),
            "stall_after": stall_after,
            "continues": continues,
            "patience": PATIENCE,
        }
        with refusals():
            rows = await executor.execute(self._statements.get("exchange"), parameters)
        reply = _replies.decode(rows[0][0])
        return Exchanged(held if write is None else _next(held), _answer(reply, ask), reply.now, rows[0][1])


@contextmanager
def contradictions() -> Iterator[None]:
    """Turns what the database says of a definition that cannot be into an error for a person."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate == _CONTRADICTS:
            raise MilepostError(str(error.diag.message_primary)) from error
        raise


def _signed(sign: Sign | None) -> dict[str, Any]:
    if sign is None:
        return {"worker": None, "lease": None}
    return {"worker": sign.worker, "lease": timedelta(seconds=sign.lease)}


def _defined(definition: Definition) -> Defined:
    return Defined(selects=definition.selects, orders=definition.orders, lanes=definition.lanes)


def _told(found: _Declared, definition: Definition) -> Opened:
    """What was declared, with what changed in words."""
    words = [changes.renamed(found.renamed, definition.name)] if found.renamed else []
    if found.was is not None:
        words += _changed(found, found.was, _defined(definition))
    return msgspec.structs.replace(found, changed="; ".join(words) or None)


def _changed(found: _Declared, was: Defined, own: Defined) -> list[str]:
    if found.is_outdated:
        return [changes.waits(was, own)]
    words = [] if found.from_ is None else [changes.selected_otherwise(was, own, found.from_)]
    if found.pending == "refused":
        return [*words, changes.cannot_be_ordered(was, own)]
    return words if found.pending is None else [*words, changes.is_to_be_ordered(was, own)]


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


def _written(held: Held, told: Sequence[Any] | None, *, recovers: bool) -> Exchanged | None:
    if told is None:
        return None
    now, streak, stalled, has_rows, waiting, retrying, unrouted, transaction, *_ = told
    answer: Answer[Bare] = Answer(
        rows=has_rows,
        counts=Counts(waiting, retrying, unrouted),
        streak=0 if recovers else streak or 0,
        stalled=None if recovers else stalled,
    )
    return Exchanged(_next(held), answer, now, transaction)


def _claim(held: Held) -> _Claim:
    """Which lane it is, and whose: a lane may be written for somebody who no longer has it, beside its owner."""
    return held.subscription, held.lane, held.epoch, held.revision


def _is_plain(write: Write, revision: int) -> bool:
    """Whether all that is written is a cursor."""
    return not write.moves and not write.tally.failed and (revision + 1) % _CLEANED_EVERY != 0


def _next(held: Held) -> Held:
    return replace(held, revision=held.revision + 1)


def _named(held: Held) -> dict[str, Any]:
    """What a write names: the lane, the life that it is of, the epoch and the revision that it replaces."""
    return {
        "subscription": held.subscription,
        "lane": held.lane,
        "life": held.life,
        "epoch": held.epoch,
        "revision": held.revision,
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _flat(cursor: Cursor) -> list[int]:
    return list(chain.from_iterable(cursor.ahead))


def _array(cursor: Cursor) -> str:
    return "{" + ",".join(map(str, _flat(cursor))) + "}"


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(flat))[::2]


def as_declared(definition: Definition) -> Mapping[str, Any]:
    """A definition as the database takes it."""
    return {
        "group": definition.group,
        "name": definition.name,
        "lanes": definition.lanes,
        "selects": definition.selects,
        "orders": definition.orders,
        "position": definition.start.position,
        "ahead": _flat(definition.start),
        "since": None if definition.since is None else definition.since.time,
        "paused": definition.paused,
        "renamed_from": definition.renamed_from,
        "exactly_once": definition.exactly_once,
        "life": definition.life,
    }


def _held(subscription: int, lane: _Lane, taken: _Taken, worker: str | None, life: UUID) -> Held:
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
        replay=Ranges(_pairs(lane.replay)),
        memories=tuple(taken.memories or ()),
        state=state,
        worker=worker,
        life=life,
    )


def _standing(stored: _Stored) -> Standing:
    return Standing(
        id=stored.id,
        group=stored.group,
        name=stored.name,
        status=stored.status,
        barrier=stored.barrier,
        stalled=stored.stalled,
        waiting=stored.waiting,
        retrying=stored.retrying,
        unrouted=stored.unrouted,
        parked=stored.parked,
        told=stored.told,
        lanes=tuple(_lanes(stored)),
        outdated=tuple(stored.outdated),
        settings=stored.settings,
        consumers=stored.consumers,
        standby=tuple(stored.standby),
    )


def _lanes(stored: _Stored) -> Iterator[LaneStanding]:
    owners = {lane: one.worker for one in stored.owners or () for lane in one.lanes}
    since = {lane: at for one in stored.owners or () for lane, at in zip(one.lanes, one.since, strict=True)}
    holders = {lane: one.worker for one in stored.holders or () for lane in one.lanes}
    stopped = {each.lane: each.limit for each in stored.stopped}
    aheads, replays = stored.cursors.aheads or {}, stored.replays or {}
    for lane, position in enumerate(stored.cursors.positions):
        holder = holders.get(lane)
        owner = owners.get(lane) or holder
        yield LaneStanding(
            number=lane,
            cursor=Cursor(position, _pairs(aheads[lane]) if lane in aheads else ()),
            held=holder is not None,
            owner=owner,
            since=since.get(lane) if owner is not None else None,
            stopped=stopped.get(lane),
            replay=Ranges(_pairs(replays[lane])) if lane in replays else NOTHING,
        )
