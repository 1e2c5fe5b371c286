"""Declare the subscriptions of a program to whoever keeps progress, and bring what it declares into force."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Literal
from uuid import UUID

import msgspec

from milepost.dispatch import Cursor
from milepost.engine.declare.declaration import cursor_of_start, refuse_beyond_end
from milepost.engine.declare.subscription import Subscription
from milepost.engine.lanes.message_loader import MessageLoader, RowPlacer
from milepost.engine.runtime import Runtime
from milepost.errors import Busy, MilepostError
from milepost.log.query import Since
from milepost.progress.definition_changes import ComparedDefinition, describe_differences
from milepost.progress.protocol import (
    BARRIER_RENEW_SECONDS,
    AnotherLife,
    RowLocation,
    SubscriptionDefinition,
    SubscriptionRecord,
    WorkerLease,
)
from milepost.progress.reports import SubscriptionState

DECLARE_ATTEMPTS = 5
"""How often it is declared when the server is restarted meanwhile."""


@dataclass(frozen=True)
class _RememberedStart:
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


class SubscriptionRegistrar:
    """Tells whoever keeps progress what a program declares.

    Another order, or other lanes, are in force only when all lanes stand at one position: until then they are
    declared again and again.
    """

    def __init__(self, runtime: Runtime, rows: MessageLoader) -> None:
        self._log = runtime.log
        self._progress = runtime.services.progress
        self._stored = None if runtime.services.database is None else runtime.services.trace()
        self._group = runtime.group
        self._rows = rows
        self._begun: dict[str, _RememberedStart] = {}
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

    async def _differs(self, subscription: Subscription, standing: SubscriptionState) -> str | None:
        named = f"name {standing.name}, here {subscription.name}" if standing.name != subscription.name else ""
        if self._stored is None:
            return named or None
        [stored] = await self._stored.subscriptions(self._group, standing.name)
        last, declaration = stored.definitions[-1], subscription.declaration
        in_force = ComparedDefinition(selects=last.selects, orders=last.orders, lanes=last.lanes)
        own = ComparedDefinition(selects=subscription.selects, orders=declaration.orders, lanes=subscription.lanes)
        return "; ".join(filter(None, [named, describe_differences(in_force, own)])) or None

    async def all(self, subscriptions: Sequence[Subscription], sign: WorkerLease) -> list[SubscriptionRecord]:
        """All at once, when a program begins."""
        return await self._declare(subscriptions, sign)

    async def _declare(
        self, subscriptions: Sequence[Subscription], sign: WorkerLease | None
    ) -> list[SubscriptionRecord]:
        for _ in range(DECLARE_ATTEMPTS - 1):
            # Where they start is reckoned anew if the server was restarted meanwhile.
            with suppress(AnotherLife):
                return await self._declare_once(subscriptions, sign)
        return await self._declare_once(subscriptions, sign)

    async def _declare_once(
        self, subscriptions: Sequence[Subscription], sign: WorkerLease | None
    ) -> list[SubscriptionRecord]:
        await self._refuse_starts(subscriptions)
        definitions = [await self._definition(subscription) for subscription in subscriptions]
        records = await self._progress.declare(definitions, sign)
        for definition, found in zip(definitions, records, strict=True):
            if definition.name not in self._begun:
                self._begun[definition.name] = await self._where_it_began(definition, found)
        return records

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

    async def _where_it_began(
        self, definition: SubscriptionDefinition, found: SubscriptionRecord
    ) -> "_RememberedStart":
        if found.created or found.begun is None:
            return _RememberedStart(definition.start, definition.since, definition.log_life)
        horizon = self._log.known_horizon
        if horizon.life is None:
            horizon = await self._log.current_horizon(wait_for_short_appends=False)
        return _RememberedStart(Cursor(found.begun), found.since, horizon.life)

    async def again(self, subscription: Subscription, sign: WorkerLease) -> SubscriptionRecord:
        """One that is not in force as it is declared; it may be then."""
        [found] = await self._declare([subscription], sign)
        if found.pending != "ready":
            return found
        declaration, definition = subscription.declaration, await self._definition(subscription)
        places = _PlacerWithBarrier(
            RowPlacer(declaration.ordered_by, subscription.lanes, self._rows),
            lambda: self._progress.declare([definition], sign),
        )
        said = await self._progress.reorder(found.id, definition, places, sign)
        if said is None:
            return found
        [found] = await self._progress.declare([definition], sign)
        return msgspec.structs.replace(found, changed=said)

    async def _definition(self, subscription: Subscription) -> SubscriptionDefinition:
        declaration = subscription.declaration
        life = await self._progress.life()
        start, since = await cursor_of_start(declaration.start, self._log)
        if (begun := self._begun.get(subscription.name)) is not None:
            # It is new only if a crash took it back. It begins where it began, as far as that is still there.
            start, since = begun.start, begun.since
            if begun.log_life is not None:
                async with self._log.feed.followed():
                    # Before that it is not known what survived.
                    await self._log.feed.wait_until_current()
                    start = start.up_to(self._log.feed.survived_since(begun.log_life))
        return SubscriptionDefinition(
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
            log_life=None if isinstance(declaration.start, int) else self._log.known_horizon.life,
        )


class _PlacerWithBarrier:
    """Keeps a barrier up while the places of rows are found, however many there are."""

    def __init__(self, places: RowPlacer, renew: Callable[[], Awaitable[object]]) -> None:
        self._places = places
        self._renew = renew
        self._renewed_at = monotonic()

    async def __call__(self, positions: Sequence[int]) -> list[RowLocation]:
        if monotonic() > self._renewed_at + BARRIER_RENEW_SECONDS:
            self._renewed_at = monotonic()
            await self._renew()
        return await self._places(positions)
