"""The subscribers of the shop: departments with handlers, couriers as consumers, and a naive reader."""

import asyncio
import random
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from psycopg import AsyncConnection, sql
from psycopg.rows import args_row

from milepost import NO_STREAM, Context, Message, Park, Retry, Transaction, WrongVersion
from milepost.app import Milepost
from milepost.cli.demo.shop import OrderPlaced, ParcelReady, PaymentReceived, shop_message

_CREATE = """
create schema if not exists shop;
create table if not exists shop.revenue (region text primary key, payments bigint not null, total bigint not null);
"""
_BOOKED = "select coalesce(sum(payments), 0)::bigint, coalesce(sum(total), 0)::bigint from shop.revenue"
_PAID = """
select count(*), coalesce(sum((m.data ->> 'total')::bigint), 0)::bigint
from {}.messages m where m.type = 'payment.received'
"""
_AFTER = 'select "position" from {}.messages where "position" > %(last)s order by "position" limit 1000'

ShopConnection: TypeAlias = AsyncConnection[tuple[object, ...]]
"""A connection of the shop's own, as any program has one beside Milepost's."""


@dataclass(frozen=True)
class PaymentSum:
    """The number of payments and their sum in cents."""

    payments: int
    total: int


async def create_revenue_table(connection: ShopConnection) -> None:
    """Create the table of the books, if it is not there yet."""
    await connection.execute(_CREATE)


async def booked_payments(connection: ShopConnection) -> PaymentSum:
    """Return the payments that the subscription has booked."""
    return await _payment_sum(connection, sql.SQL(_BOOKED))


async def logged_payments(connection: ShopConnection, schema: str) -> PaymentSum:
    """Return the payments that are in the log."""
    return await _payment_sum(connection, sql.SQL(_PAID).format(sql.Identifier(schema)))


async def _payment_sum(connection: ShopConnection, statement: sql.SQL | sql.Composed) -> PaymentSum:
    async with connection.cursor(row_factory=args_row(PaymentSum)) as cursor:
        await cursor.execute(statement)
        return (await cursor.fetchall())[0]


SHIPPING = "shipping"
RIDE_SECONDS = 0.15
"""Seconds for a delivery, on average."""


@dataclass
class Courier:
    """A consumer that takes parcels that match its filter, a few at a time; a higher priority comes first."""

    name: str
    where: str | None
    priority: int
    capacity: int
    delivered: int = 0

    async def run(self, mp: Milepost) -> None:
        """Deliver until cancelled."""
        async with mp.consumer(
            SHIPPING, where=self.where, priority=self.priority, capacity=self.capacity
        ) as consumer:
            async for delivery in consumer:
                async with delivery:
                    await asyncio.sleep(random.uniform(0.2, 1.8) * RIDE_SECONDS)  # noqa: S311
                    self.delivered += 1


def new_couriers() -> list[Courier]:
    """Return the couriers of the shop."""
    return [
        Courier("express", "express == true", priority=10, capacity=2),
        Courier("overseas", 'region == "US" || region == "JP"', priority=5, capacity=4),
        Courier("anywhere", None, priority=0, capacity=4),
    ]


async def create_shipping(mp: Milepost) -> None:
    """Create the subscription that the couriers share."""
    await mp.create_subscription(SHIPPING, category="parcel", ordered_by=None, on_park="continue", timeout=30)


PACKING_SECONDS = 0.1
"""Seconds to pack a parcel, on average; two are packed at a time, which is not always enough."""
EMAILS_PER_BOUNCE = 40
"""One e-mail in so many is refused, and parked."""
EMAILS_PER_HICCUP = 15
"""One e-mail in so many fails at its first attempt."""


def declare_departments(mp: Milepost) -> None:
    """Declare the subscriptions with handlers."""

    @mp.subscription("revenue", category="payment")
    async def revenue(payment: PaymentReceived, tx: Transaction) -> None:
        """Exactly once: what it writes commits together with its progress."""
        await tx.execute(
            """
            insert into shop.revenue (region, payments, total) values (%s, 1, %s)
            on conflict (region) do update
            set payments = revenue.payments + 1, total = revenue.total + excluded.total
            """,
            (payment.region, payment.total),
        )

    @mp.subscription("invoices", category="order", where='total >= 5000 && region == "EU"')
    async def invoices(order: OrderPlaced) -> None:
        """Only the large ones from the EU."""

    @mp.subscription("warehouse", category="payment", concurrency=2)
    async def warehouse(message: Message[PaymentReceived]) -> None:
        """Slow: it falls behind when much is sold, and catches up."""
        payment = message.data
        await asyncio.sleep(random.uniform(0.2, 1.8) * PACKING_SECONDS)  # noqa: S311
        parcel = ParcelReady(payment.order, payment.region, express=payment.order % 5 == 0)
        # Packed before, if the demo was ended at the wrong moment.
        with suppress(WrongVersion):
            await mp.append(f"parcel-{payment.order}", shop_message(parcel, cause=message.id), expected=NO_STREAM)

    @mp.subscription("emails", category="order", retry=Retry(attempts=4, delay=2, max_delay=10))
    async def emails(order: OrderPlaced, context: Context) -> None:
        """Fails on some orders: most succeed when they are tried again, a few are parked."""
        if order.order % EMAILS_PER_BOUNCE == 0:
            raise Park(f"the mailbox of {order.customer} does not exist")
        if order.order % EMAILS_PER_HICCUP == 0 and context.attempt == 1:
            raise ConnectionError("the mail server did not answer")


POLL_SECONDS = 0.05
"""Seconds between two looks."""
MAX_REMEMBERED_POSITIONS = 10_000
"""Positions that the naive reader remembers."""


class NaiveReader:
    """A reader that asks for positions above the last one it saw: it never sees what commits late."""

    def __init__(self) -> None:
        self._newest = 0
        self._seen: deque[int] = deque(maxlen=MAX_REMEMBERED_POSITIONS)

    def skipped(self, positions: list[int]) -> int:
        """Return how many of these positions it passed without seeing them."""
        seen = set(self._seen)
        oldest = self._seen[0] if self._seen else 0
        return sum(oldest < position < self._newest and position not in seen for position in positions)

    async def run(self, mp: Milepost) -> None:
        """Poll until cancelled, from now on."""
        statement = sql.SQL(_AFTER).format(sql.Identifier(mp.settings["schema"].value))
        self._newest = await mp.head()
        async with await AsyncConnection.connect(mp.url, autocommit=True) as connection:
            while True:
                cursor = await connection.execute(statement, {"last": self._newest})
                self._seen.extend(row[0] for row in await cursor.fetchall())
                self._newest = self._seen[-1] if self._seen else self._newest
                await asyncio.sleep(POLL_SECONDS)
