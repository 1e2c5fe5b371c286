"""Progress in PostgreSQL: a statement for each call."""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import chain, pairwise
from typing import Any
from uuid import UUID

import msgspec

from milepost.dispatch import (
    AttemptTally,
    Cursor,
    Exchange,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeWrite,
    LaneState,
    LoadedRow,
    RowCounts,
)
from milepost.errors import Unavailable
from milepost.postgres import schema
from milepost.postgres.connections import Executor, executor_of
from milepost.postgres.pool import Database, translate_errors
from milepost.postgres.statements import Statements, array_literal
from milepost.progress import definition_changes
from milepost.progress.definition_changes import ComparedDefinition
from milepost.progress.postgres.errors import (
    retry_deadlocks,
    translate_another_life,
    translate_contradictions,
    translate_refusals,
)
from milepost.progress.protocol import (
    ExchangeResult,
    LaneGrant,
    LocateRows,
    OutdatedDefinition,
    PassedBeforeReplay,
    RolledBack,
    RowOnly,
    ServingStatus,
    StaleLane,
    SubscriptionDefinition,
    SubscriptionRecord,
    WorkerLease,
    stale_lane_error,
)
from milepost.progress.reports import (
    LaneStatus,
    StoppedLane,
    SubscriptionActivity,
    SubscriptionState,
    WorkerReport,
)
from milepost.progress.rows import FoundRows, storable_moves
from milepost.ranges import NO_POSITIONS, Ranges

_LaneClaim = tuple[int, int, int, int]
"""A lane of a subscription, in the hands of an owner who has written it so often."""

PROGRAM = f"milepost {version('milepost')}"

IDLE_TRANSACTION_TIMEOUT = "5s"
"""How long a transaction may stand still between its last write and its commit."""

REPORT_VALID_TIME = timedelta(seconds=10)
"""How long what a worker has told is taken for what it does."""
REKEY_PAGE_ROWS = 1000
"""How many rows are looked at together when they get other keys."""


MAX_CURSOR_TRIES = 3
"""How often one of several cursors is written that was rolled back: the others hold already."""
_CLEANUP_REVISIONS = 64
"""Every so many revisions of a lane, the function that removes old ones does the write."""
_UNLIMITED_ATTEMPTS = 2**62


class _ExchangeReply(msgspec.Struct, frozen=True):
    """What an exchange gives back."""

    now: float
    moved: list[bool]
    found: FoundRows | None
    rows: bool
    counts: RowCounts
    streak: int | None
    stalled: str | None


class _TakenLane(msgspec.Struct, frozen=True):
    """A lane that was taken."""

    lane: int
    epoch: int
    revision: int
    previous: int | None
    position: int
    ahead: list[int]
    unclean: bool
    rows: bool
    running: list[LoadedRow[RowOnly]]
    replay: list[int]


class _TakeReply(msgspec.Struct, frozen=True):
    """What taking lanes gives back."""

    now: float
    lanes: list[_TakenLane]
    counts: RowCounts
    streak: int
    stalled: str | None
    memories: list[PassedBeforeReplay] | None


class _StoredCursors(msgspec.Struct, frozen=True):
    """The cursors of a subscription's lanes."""

    positions: list[int]
    """Of each lane."""
    aheads: dict[int, list[int]] | None
    """Of the lanes that are done with something ahead of theirs."""


class _LaneOwner(msgspec.Struct, frozen=True):
    """Some lanes, and the live worker that may try them."""

    worker: str | None
    """None: nobody may, or it does not live any more."""
    lanes: list[int]
    since: list[datetime]


class _LaneHolder(msgspec.Struct, frozen=True):
    """A live worker that has some lanes."""

    worker: str
    lanes: list[int]


class _StoredState(msgspec.Struct, frozen=True):
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
    told: SubscriptionActivity
    cursors: _StoredCursors
    owners: list[_LaneOwner] | None
    holders: list[_LaneHolder] | None
    """Those with the newest definition come last."""
    replays: dict[int, list[int]] | None
    outdated: list[str]
    stopped: list[StoppedLane]
    settings: dict[str, Any] | None
    consumers: int
    standby: list[str]


class _DeclareReply(SubscriptionRecord, frozen=True, kw_only=True):
    """What declaring a subscription gives back."""

    renamed: str | None
    was: ComparedDefinition | None
    from_: int | None = msgspec.field(name="from")


class _ReorderReply(msgspec.Struct, frozen=True):
    """What putting another order in force gives back."""

    was: ComparedDefinition
    from_: int = msgspec.field(name="from")
    up_to: int


_exchange_reply_decoder = msgspec.json.Decoder(_ExchangeReply)
_take_reply_decoder = msgspec.json.Decoder(_TakeReply | None)
_declare_reply_decoder = msgspec.json.Decoder(list[_DeclareReply])
_reorder_reply_decoder = msgspec.json.Decoder(_ReorderReply)
_record_decoder = msgspec.json.Decoder(SubscriptionRecord)
_state_decoder = msgspec.json.Decoder(_StoredState)


class PostgresProgress:
    """Progress in a schema of a database, which whoever made it opens and closes."""

    def __init__(self, database: Database, schema: str) -> None:
        self._database = database
        self._statements = Statements(schema, "milepost.progress.postgres")

    async def open(self) -> None:
        """Raises `SchemaMismatch` unless the schema is there."""
        async with self._database.connection() as connection:
            with translate_errors():
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

    async def declare(
        self, definitions: Sequence[SubscriptionDefinition], sign: WorkerLease | None = None
    ) -> list[SubscriptionRecord]:
        """Creates what is new, and tells what is there; safe from many processes at once."""
        parameters = {
            "definitions": _json_text([definition_parameters(definition) for definition in definitions]),
            "program": PROGRAM,
            **_lease_parameters(sign),
        }
        found = _declare_reply_decoder.decode(await self._declare(parameters))
        return [_declared_record(*pair) for pair in zip(found, definitions, strict=True)]

    async def _declare(self, parameters: Mapping[str, Any]) -> str:
        statement = self._statements.get("declare")
        with translate_contradictions(), translate_another_life():
            # It fences lanes, whose owners may be about to write to the subscription.
            rows = await retry_deadlocks(lambda: self._database.execute(statement, parameters))
        return str(rows[0][0])

    async def known(self, group: str) -> set[str]:
        """The names of the subscriptions of a group."""
        rows = await self._database.execute(self._statements.get("known"), {"group": group})
        return {row[0] for row in rows}

    async def look(self, sign: WorkerLease, serving: Sequence[ServingStatus]) -> dict[int, SubscriptionRecord]:
        """These subscriptions as workers of definitions of these numbers have to know them now."""
        parameters = {"serving": _json_text(serving), **_lease_parameters(sign)}
        rows = await self._database.execute(self._statements.get("look"), parameters)
        found = [_record_decoder.decode(row[0]) for row in rows]
        return {opened.id: opened for opened in found}

    async def leave(self, worker: str) -> None:
        """A worker does nothing any more."""
        await self._database.execute(self._statements.get("depart"), {"worker": worker})

    async def reorder(
        self,
        subscription: int,
        definition: SubscriptionDefinition,
        places: LocateRows,
        sign: WorkerLease | None = None,
    ) -> str | None:
        """Puts another order, or other lanes, in force."""
        rows = [row async for page in self._pages_of_rows(subscription) for row in await places(page)]
        parameters = {
            "subscription": subscription,
            "definition": _json_text(definition_parameters(definition)),
            "rows": _json_text([{"position": at, "lane": lane, "key": key} for at, lane, key in rows]),
            "program": PROGRAM,
            **_lease_parameters(sign),
        }
        with translate_another_life():
            found = await self._database.within(None).execute(self._statements.get("reorder"), parameters)
        if found[0][0] is None:
            return None
        done = _reorder_reply_decoder.decode(found[0][0])
        return definition_changes.describe_order_change(
            done.was, _compared_definition(definition), done.from_, done.up_to - done.from_
        )

    async def _pages_of_rows(self, subscription: int) -> AsyncIterator[list[int]]:
        """The positions of all rows, some at a time."""
        after = 0
        while True:
            parameters = {"subscription": subscription, "after": after, "limit": REKEY_PAGE_ROWS}
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
    ) -> list[LaneGrant]:
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
            raise OutdatedDefinition(rows[0][1])
        taken = _take_reply_decoder.decode(rows[0][0]) if rows and rows[0][0] is not None else None
        if taken is None:
            return []
        return [_lane_grant(subscription, lane, taken, worker, rows[0][2]) for lane in taken.lanes]

    async def exchange(
        self, held: LaneGrant, exchange: Exchange[Any], *, stall_after: int, on_park: str, connection: Any = None
    ) -> ExchangeResult:
        """One transaction: what is to be written, then what is asked."""
        executor = self._database if connection is None else executor_of(connection)
        write = exchange.write
        if write is not None and exchange.ask is None and _is_cursor_only(write, held.revision):
            [written] = await self._write_cursors(executor, [(held, write)])
            if written is None:
                raise stale_lane_error()
            return written
        return await self._exchange(
            executor, held, write, exchange.ask, stall_after=stall_after, continues=on_park == "continue"
        )

    async def release(self, held: LaneGrant, exchange: Exchange[Any] | None) -> None:
        """The last write of an owner. What it says of failures is counted; whether they stall is for the next."""
        try:
            if exchange is None or exchange.write is None:
                with translate_refusals():
                    parameters = _write_parameters(held) | {"worker": held.worker}
                    if not await self._database.execute(self._statements.get("release"), parameters):
                        raise stale_lane_error()
                return
            await self._exchange(self._database, held, exchange.write, None, released=True)
        except StaleLane:
            await self._let_go(held)
            raise
        await self._let_go(held)

    async def _let_go(self, held: LaneGrant) -> None:
        parameters = {"subscription": held.subscription, "lane": held.lane, "worker": held.worker}
        await self._database.execute(self._statements.get("let_go"), parameters)

    async def report(self, worker: str, reports: Sequence[WorkerReport]) -> None:
        """What a worker does."""
        parameters = {"worker": worker, "reports": _json_text(reports), "during": REPORT_VALID_TIME}
        await self._database.execute(self._statements.get("report"), parameters)

    async def standings(self, group: str | None = None, name: str | None = None) -> list[SubscriptionState]:
        """How all subscriptions stand, or the one of this group and name, in the order of their addresses."""
        parameters = {"group": group, "name": name}
        rows = await self._database.within(None).execute(self._statements.get("standings"), parameters)
        return [_subscription_state(_state_decoder.decode(row[0])) for row in rows]

    async def write(self, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]) -> list[ExchangeResult | None]:
        """Cursors and nothing else; None stands for a lane that has another owner."""
        plain = [(held, write) for held, write in cursors if _is_cursor_only(write, held.revision)]
        found: dict[_LaneClaim, ExchangeResult | None] = {}
        # Somebody may write one of them at the same moment; which, each says by itself then.
        with suppress(StaleLane):
            written = await self._write_cursors(self._database, plain)
            found = {_lane_claim(held): one for (held, _), one in zip(plain, written, strict=True)}
        for held, write in cursors:
            if _lane_claim(held) not in found:
                found[_lane_claim(held)] = await self._write_alone(held, write, is_first=not found)
        return [found.get(_lane_claim(held)) for held, _ in cursors]

    async def _write_alone(
        self, held: LaneGrant, write: ExchangeWrite, *, is_first: bool
    ) -> ExchangeResult | None:
        """Writes one of several; when it cannot be written, others before it may have been."""
        for _ in range(MAX_CURSOR_TRIES):
            try:
                return await self._exchange(self._database, held, write, None)
            except StaleLane:
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
        self, executor: Executor, cursors: Sequence[tuple[LaneGrant, ExchangeWrite]]
    ) -> list[ExchangeResult | None]:
        if not cursors:
            return []
        parameters = {
            "subscriptions": array_literal(held.subscription for held, _ in cursors),
            "lanes": array_literal(held.lane for held, _ in cursors),
            "lives": array_literal(str(held.life) for held, _ in cursors),
            "epochs": array_literal(held.epoch for held, _ in cursors),
            "revisions": array_literal(held.revision for held, _ in cursors),
            "positions": array_literal(write.cursor.position for _, write in cursors),
            "aheads": [_ahead_literal(write.cursor) for _, write in cursors],
            "patience": IDLE_TRANSACTION_TIMEOUT,
        }
        with translate_refusals():
            rows = await executor.execute(self._statements.get("write_cursors"), parameters)
        told = {row[:4]: row[4:] for row in rows}
        succeeded = {held.subscription for held, write in cursors if write.tally.succeeded}
        recovering = {row[0] for row in rows if row[5] or row[6]} & succeeded
        for subscription in sorted(recovering):
            await executor.execute(self._statements.get("recover"), {"subscription": subscription})
        return [
            _cursor_result(held, told.get(_lane_claim(held)), recovers=held.subscription in recovering)
            for held, _ in cursors
        ]

    async def _exchange(
        self,
        executor: Executor,
        held: LaneGrant,
        write: ExchangeWrite | None,
        ask: ExchangeQuery | None,
        *,
        stall_after: int = _UNLIMITED_ATTEMPTS,
        continues: bool = False,
        released: bool = False,
    ) -> ExchangeResult:
        tally = write.tally if write else AttemptTally()
        parameters = _write_parameters(held) | {
            "writes": write is not None,
            "position": write.cursor.position if write else None,
            "ahead": _flat_ahead(write.cursor) if write else None,
            "moves": _json_text(storable_moves(write.moves)) if write and write.moves else None,
            "keep_done": write.keep_done if write else None,
            "succeeded": tally.succeeded,
            "failed": tally.failed,
            "released": released,
            "ask": None if ask is None else _json_text(ask),
            "stall_after": stall_after,
            "continues": continues,
            "patience": IDLE_TRANSACTION_TIMEOUT,
        }
        with translate_refusals():
            rows = await executor.execute(self._statements.get("exchange"), parameters)
        reply = _exchange_reply_decoder.decode(rows[0][0])
        return ExchangeResult(
            held if write is None else _next_grant(held), _answer(reply, ask), reply.now, rows[0][1]
        )


def _lease_parameters(sign: WorkerLease | None) -> dict[str, Any]:
    if sign is None:
        return {"worker": None, "lease": None}
    return {"worker": sign.worker, "lease": timedelta(seconds=sign.lease)}


def _compared_definition(definition: SubscriptionDefinition) -> ComparedDefinition:
    return ComparedDefinition(selects=definition.selects, orders=definition.orders, lanes=definition.lanes)


def _declared_record(found: _DeclareReply, definition: SubscriptionDefinition) -> SubscriptionRecord:
    """What was declared, with what changed in words."""
    words = [definition_changes.describe_renaming(found.renamed, definition.name)] if found.renamed else []
    if found.was is not None:
        words += _definition_changes(found, found.was, _compared_definition(definition))
    return msgspec.structs.replace(found, changed="; ".join(words) or None)


def _definition_changes(found: _DeclareReply, was: ComparedDefinition, own: ComparedDefinition) -> list[str]:
    if found.is_outdated:
        return [definition_changes.describe_waiting(was, own)]
    words = [] if found.from_ is None else [definition_changes.describe_selection_change(was, own, found.from_)]
    if found.pending == "refused":
        return [*words, definition_changes.describe_refused_order(was, own)]
    return words if found.pending is None else [*words, definition_changes.describe_pending_order(was, own)]


def _answer(reply: _ExchangeReply, ask: ExchangeQuery | None) -> ExchangeAnswer[RowOnly]:
    told = reply.found.answers(ask) if ask is not None and reply.found is not None else {}
    return ExchangeAnswer(
        moved=reply.moved,
        rows=reply.rows,
        counts=reply.counts,
        streak=reply.streak or 0,
        stalled=reply.stalled,
        **told,
    )


def _cursor_result(held: LaneGrant, told: Sequence[Any] | None, *, recovers: bool) -> ExchangeResult | None:
    if told is None:
        return None
    now, streak, stalled, has_rows, waiting, retrying, unrouted, transaction, *_ = told
    answer: ExchangeAnswer[RowOnly] = ExchangeAnswer(
        rows=has_rows,
        counts=RowCounts(waiting, retrying, unrouted),
        streak=0 if recovers else streak or 0,
        stalled=None if recovers else stalled,
    )
    return ExchangeResult(_next_grant(held), answer, now, transaction)


def _lane_claim(held: LaneGrant) -> _LaneClaim:
    """Which lane it is, and whose: a lane may be written for somebody who no longer has it, beside its owner."""
    return held.subscription, held.lane, held.epoch, held.revision


def _is_cursor_only(write: ExchangeWrite, revision: int) -> bool:
    """Whether all that is written is a cursor."""
    return not write.moves and not write.tally.failed and (revision + 1) % _CLEANUP_REVISIONS != 0


def _next_grant(held: LaneGrant) -> LaneGrant:
    return replace(held, revision=held.revision + 1)


def _write_parameters(held: LaneGrant) -> dict[str, Any]:
    """What a write names: the lane, the life that it is of, the epoch and the revision that it replaces."""
    return {
        "subscription": held.subscription,
        "lane": held.lane,
        "life": held.life,
        "epoch": held.epoch,
        "revision": held.revision,
    }


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _flat_ahead(cursor: Cursor) -> list[int]:
    return list(chain.from_iterable(cursor.ahead))


def _ahead_literal(cursor: Cursor) -> str:
    return "{" + ",".join(map(str, _flat_ahead(cursor))) + "}"


def _pairs(flat: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(pairwise(flat))[::2]


def definition_parameters(definition: SubscriptionDefinition) -> Mapping[str, Any]:
    """A definition as the database takes it."""
    return {
        "group": definition.group,
        "name": definition.name,
        "lanes": definition.lanes,
        "selects": definition.selects,
        "orders": definition.orders,
        "position": definition.start.position,
        "ahead": _flat_ahead(definition.start),
        "since": None if definition.since is None else definition.since.time,
        "paused": definition.paused,
        "renamed_from": definition.renamed_from,
        "exactly_once": definition.exactly_once,
        "life": definition.life,
    }


def _lane_grant(
    subscription: int, lane: _TakenLane, taken: _TakeReply, worker: str | None, life: UUID
) -> LaneGrant:
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
    return LaneGrant(
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


def _subscription_state(stored: _StoredState) -> SubscriptionState:
    return SubscriptionState(
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
        lanes=tuple(_lane_statuses(stored)),
        outdated=tuple(stored.outdated),
        settings=stored.settings,
        consumers=stored.consumers,
        standby=tuple(stored.standby),
    )


def _lane_statuses(stored: _StoredState) -> Iterator[LaneStatus]:
    owners = {lane: one.worker for one in stored.owners or () for lane in one.lanes}
    since = {lane: at for one in stored.owners or () for lane, at in zip(one.lanes, one.since, strict=True)}
    holders = {lane: one.worker for one in stored.holders or () for lane in one.lanes}
    stopped = {each.lane: each.limit for each in stored.stopped}
    aheads, replays = stored.cursors.aheads or {}, stored.replays or {}
    for lane, position in enumerate(stored.cursors.positions):
        holder = holders.get(lane)
        owner = owners.get(lane) or holder
        yield LaneStatus(
            number=lane,
            cursor=Cursor(position, _pairs(aheads[lane]) if lane in aheads else ()),
            held=holder is not None,
            owner=owner,
            since=since.get(lane) if owner is not None else None,
            stopped=stopped.get(lane),
            replay=Ranges(_pairs(replays[lane])) if lane in replays else NO_POSITIONS,
        )
