"""The shop's departments: subscriptions with handlers, each with a character of its own."""

import asyncio
import random
from contextlib import suppress

from milepost import NO_STREAM, Context, Message, Park, Retry, Transaction, WrongVersion
from milepost.app import Milepost
from milepost.cli.demo.messages import OrderPlaced, ParcelReady, PaymentReceived, related

PACKING = 0.1
"""Seconds to pack a parcel, on average; two are packed at a time, which is not always enough."""
BOUNCES = 40
"""One e-mail in so many is refused until somebody mends the address."""
HICCUPS = 15
"""One in so many fails at first."""


def open_departments(mp: Milepost) -> None:
    """Declares them."""

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
        await asyncio.sleep(random.uniform(0.2, 1.8) * PACKING)  # noqa: S311
        parcel = ParcelReady(payment.order, payment.region, express=payment.order % 5 == 0)
        # Packed before, if the demo was ended at the wrong moment.
        with suppress(WrongVersion):
            await mp.append(f"parcel-{payment.order}", related(parcel, cause=message.id), expected=NO_STREAM)

    @mp.subscription("emails", category="order", retry=Retry(attempts=4, delay=2, max_delay=10))
    async def emails(order: OrderPlaced, context: Context) -> None:
        """Fails on some orders: most succeed when they are tried again, a few are parked."""
        if order.order % BOUNCES == 0:
            raise Park(f"the mailbox of {order.customer} does not exist")
        if order.order % HICCUPS == 0 and context.attempt == 1:
            raise ConnectionError("the mail server did not answer")
