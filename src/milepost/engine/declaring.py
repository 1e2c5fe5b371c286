"""Declares the subscriptions of a program, and brings what it declares in force."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.order import Order, placed
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.start import start_of
from milepost.engine.subscription import Subscription
from milepost.log.since import Since
from milepost.progress.protocol import Definition, Opened, RowPlace, Sign
from milepost.progress.refusals import AnotherLife

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


class Declaring:
    """Tells whoever keeps progress what a program declares.

    Another order, or other lanes, are in force only when all lanes stand at one position: until then they are
    declared again and again.
    """

    def __init__(self, place: Place, rows: Rows) -> None:
        self._log = place.log
        self._progress = place.services.progress
        self._group = place.group
        self._rows = rows
        self._begun: dict[str, _Begun] = {}
        """Where each subscription began, in case a crash takes it back."""

    async def begin(self, subscriptions: Iterable[Subscription]) -> None:
        """Creates what is new and begins now: the program opens, and this is that moment."""
        now = [each for each in subscriptions if each.declaration.start == "now" and each.has_handlers]
        if not now:
            return
        await self._progress.open()
        known = await self._progress.known(self._group)
        new = [each for each in now if not known & {each.name, each.declaration.renamed_from}]
        if new:
            await self._declare(new, None)

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
        definitions = [await self._definition(subscription) for subscription in subscriptions]
        opened = await self._progress.declare(definitions, sign)
        for definition, found in zip(definitions, opened, strict=True):
            if definition.name not in self._begun:
                self._begun[definition.name] = await self._where_it_began(definition, found)
        return opened

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
            RowPlaces(declaration.ordered_by, declaration.lanes, self._rows),
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
            lanes=declaration.lanes,
            selects=subscription.selects,
            orders=declaration.orders,
            start=start,
            since=since,
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
