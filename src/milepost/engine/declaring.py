"""Declares the subscriptions of a program, and brings what it declares in force."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Literal
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.order import Order, placed
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.start import refuse_beyond_end, start_of
from milepost.engine.subscription import Subscription
from milepost.errors import Busy, MilepostError
from milepost.log.since import Since
from milepost.progress.changes import Defined, differ
from milepost.progress.protocol import Definition, Opened, RowPlace, Sign
from milepost.progress.refusals import AnotherLife
from milepost.progress.standing import Standing
from milepost.progress.tracing import Tracing

DECLARE_ATTEMPTS = 5
"""How often it is declared when the server is restarted meanwhile."""
RENEW = 3.0
"""Seconds after which a barrier is set again."""


@dataclass(frozen=True)
class _Begun:
    """Where a subscription began."""

    start: Cursor
    since: Since | None
    log_life: UUID | None
    """The life of the log's server then; None: the start is a position that somebody has named."""


class DeclaredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that a program declares, after `create_declared`."""

    group: str
    name: str
    """The one in force: that of `renamed_from` until a worker starts."""
    created: bool
    """Whether it is new; it was there already otherwise."""
    status: Literal["running", "paused"]
    """Whether it waits for a person to resume it."""
    differs: str | None
    """What of its definition is other than in the code, in words, until a worker starts; None: nothing is."""


class Declaring:
    """Tells whoever keeps progress what a program declares.

    Another order, or other lanes, are in force only when all lanes stand at one position: until then they are
    declared again and again.
    """

    def __init__(self, place: Place, rows: Rows) -> None:
        self._log = place.log
        self._progress = place.services.progress
        database = place.services.database
        self._stored = None if database is None else Tracing(database, place.log.statements.schema)
        self._group = place.group
        self._rows = rows
        self._begun: dict[str, _Begun] = {}
        """Where each subscription began, in case a crash takes it back."""

    async def create(self, subscriptions: Sequence[Subscription]) -> list[DeclaredSubscription]:
        """Create those that are new, and say of the others how they stand. Nothing runs."""
        await self._progress.open()
        known = await self._progress.known(self._group)
        new = [each for each in subscriptions if known.isdisjoint(each.names)]
        created = {found.id: found.created for found in await self._declare(new, None)} if new else {}
        return [await self._stands(subscription, created) for subscription in subscriptions]

    async def _stands(self, subscription: Subscription, created: Mapping[int, bool]) -> DeclaredSubscription:
        for name in subscription.names:
            for standing in await self._progress.standings(self._group, name):
                if standing.settings is not None:
                    raise MilepostError(
                        f"{self._group}/{name}: it was created for consumers, and cannot have handlers: choose "
                        "another name for one of both, or delete it"
                    )
                return DeclaredSubscription(
                    group=self._group,
                    name=standing.name,
                    created=created.get(standing.id, False),
                    status="paused" if standing.status == "paused" else "running",
                    differs=await self._differs(subscription, standing),
                )
        raise Busy(f"{self._group}/{subscription.name}: it was deleted meanwhile")

    async def _differs(self, subscription: Subscription, standing: Standing) -> str | None:
        named = f"name {standing.name}, here {subscription.name}" if standing.name != subscription.name else ""
        if self._stored is None:
            return named or None
        [stored] = await self._stored.subscriptions(self._group, standing.name)
        last, declaration = stored.definitions[-1], subscription.declaration
        in_force = Defined(selects=last.selects, orders=last.orders, lanes=last.lanes)
        own = Defined(selects=subscription.selects, orders=declaration.orders, lanes=subscription.lanes)
        return "; ".join(filter(None, [named, differ(in_force, own)])) or None

    async def all(self, subscriptions: Sequence[Subscription], sign: Sign) -> list[Opened]:
        """All at once, when a program begins."""
        return await self._declare(subscriptions, sign)

    async def _declare(self, subscriptions: Sequence[Subscription], sign: Sign | None) -> list[Opened]:
        for _ in range(DECLARE_ATTEMPTS - 1):
            # Where they start is reckoned anew if the server was restarted meanwhile.
            with suppress(AnotherLife):
                return await self._declare_once(subscriptions, sign)
        return await self._declare_once(subscriptions, sign)

    async def _declare_once(self, subscriptions: Sequence[Subscription], sign: Sign | None) -> list[Opened]:
        await self._refuse_starts(subscriptions)
        definitions = [await self._definition(subscription) for subscription in subscriptions]
        opened = await self._progress.declare(definitions, sign)
        for definition, found in zip(definitions, opened, strict=True):
            if definition.name not in self._begun:
                self._begun[definition.name] = await self._where_it_began(definition, found)
        return opened

    async def _refuse_starts(self, subscriptions: Sequence[Subscription]) -> None:
        """Refuse a start beyond the end of the log, of those that are new."""
        at_positions = [each for each in subscriptions if isinstance(each.declaration.start, int)]
        # One that had begun here, and was taken back by a crash, may find a shorter log.
        if not (at_positions := [each for each in at_positions if each.name not in self._begun]):
            return
        known = await self._progress.known(self._group)
        for each in at_positions:
            if known.isdisjoint(each.names):
                of = f"subscription {each.name!r}: "
                await refuse_beyond_end("start", each.declaration.start, self._log, of)

    async def _where_it_began(self, definition: Definition, found: Opened) -> "_Begun":
        if found.created or found.begun is None:
            return _Begun(definition.start, definition.since, definition.log_life)
        if self._log.horizon.life is None:
            await self._log.horizon.sample()
        return _Begun(Cursor(found.begun), found.since, self._log.horizon.life)

    async def again(self, subscription: Subscription, sign: Sign) -> Opened:
        """One that is not in force as it is declared; it may be then."""
        [found] = await self._declare([subscription], sign)
        if found.pending != "ready":
            return found
        declaration, definition = subscription.declaration, await self._definition(subscription)
        places = _Held(
            RowPlaces(declaration.ordered_by, subscription.lanes, self._rows),
            lambda: self._progress.declare([definition], sign),
        )
        said = await self._progress.reorder(found.id, definition, places, sign)
        if said is None:
            return found
        [found] = await self._progress.declare([definition], sign)
        return msgspec.structs.replace(found, changed=said)

    async def _definition(self, subscription: Subscription) -> Definition:
        declaration = subscription.declaration
        life = await self._progress.life()
        start, since = await start_of(declaration.start, self._log)
        if (begun := self._begun.get(subscription.name)) is not None:
            # It is new only if a crash took it back. It begins where it began, as far as that is still there.
            start, since = begun.start, begun.since
            if begun.log_life is not None:
                async with self._log.feed.followed():
                    # Before that it is not known what survived.
                    await self._log.feed.in_step()
                    start = start.up_to(self._log.feed.survived_since(begun.log_life))
        return Definition(
            group=self._group,
            name=subscription.name,
            lanes=subscription.lanes,
            selects=subscription.selects,
            orders=declaration.orders,
            start=start,
            since=since,
            paused=declaration.paused,
            renamed_from=declaration.renamed_from,
            exactly_once=subscription.takes_transaction,
            life=life,
            log_life=None if isinstance(declaration.start, int) else self._log.horizon.life,
        )


class RowPlaces:
    """Where rows belong by an order and a number of lanes."""

    def __init__(self, order: Order, lanes: int, rows: Rows) -> None:
        self._order = order
        self._lanes = lanes
        self._rows = rows

    async def __call__(self, positions: Sequence[int]) -> list[RowPlace]:
        messages = await self._rows.messages(positions)
        lanes, keys = placed(messages, self._order, self._lanes)
        places: dict[int, RowPlace] = {
            message.position: (message.position, lanes[place], None if keys is None else keys[place])
            for place, message in enumerate(messages)
        }
        # What is no longer in the log cannot run, wherever it is.
        return [places.get(position, (position, 0, None)) for position in positions]


class _Held:
    """Keeps a barrier up while the places of rows are found, however many there are."""

    def __init__(self, places: RowPlaces, renew: Callable[[], Awaitable[object]]) -> None:
        self._places = places
        self._renew = renew
        self._renewed_at = monotonic()

    async def __call__(self, positions: Sequence[int]) -> list[RowPlace]:
        if monotonic() > self._renewed_at + RENEW:
            self._renewed_at = monotonic()
            await self._renew()
        return await self._places(positions)
