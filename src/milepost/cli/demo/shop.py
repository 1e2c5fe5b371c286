"""The shop: orders and payments, and now and then a checkout that takes its time to commit."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

from milepost.app import Milepost
from milepost.cli.demo.messages import (
    OrderCancelled,
    OrderPlaced,
    Payload,
    PaymentDeclined,
    PaymentReceived,
    related,
)

ORDER_EVERY = 0.08
"""Seconds between two orders, on average; each has two to four messages."""
FIRST_SLOW_CHECKOUT = 2.5
SLOW_CHECKOUT_EVERY = 20.0
SLOW_CHECKOUT_TAKES = 3.0
"""Seconds that its transaction stays open after it has appended."""
EVENTS = 200
"""How many events are remembered."""

_PRODUCTS = {"tea, 100 g": 890, "teapot": 4200, "cup": 1250, "kettle": 5900, "honey": 740, "biscuits": 460}
_CUSTOMERS = ("Amara", "Björn", "Chiara", "Dmitri", "Esther", "Farid", "Grace", "Hiroshi", "Inês", "Jakub")
_REGIONS = ("EU", "UK", "US", "JP")


@dataclass(frozen=True)
class Late:
    """A message that has its position and is not committed yet."""

    position: int
    since: float


@dataclass
class Shop:
    """Appends as a shop would, and tells what is worth to be told."""

    mp: Milepost
    late: Late | None = None
    late_positions: list[int] = field(default_factory=list)
    appended: int = 0
    newest: int = 0
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    told: int = 0
    """How many events there were, also those that are forgotten."""
    _begun: float = field(default_factory=monotonic)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _orders: int = 1000
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds(self) -> float:
        """How long it has been open."""
        return monotonic() - self._begun

    @property
    def rate(self) -> float:
        """Messages a second, over the last two seconds."""
        since = monotonic() - 2
        return sum(when > since for when in self._recent) / min(2.0, max(0.1, self.seconds))

    def tell(self, text: str) -> None:
        """Notes something that a person should read."""
        self.told += 1
        self.events.append((self.seconds, text))

    async def open(self) -> bool:
        """Goes on after the last order of the log; whether there was one."""
        async for message in self.mp.read(category="order", types="order.placed", backwards=True, limit=1):
            self._orders = max(self._orders, int(message.stream.removeprefix("order-")))
            return True
        return False

    def close(self) -> None:
        """No more orders; what is under way is finished."""
        self._closing.set()

    async def run(self) -> None:
        """Sells until it is closed."""
        async with asyncio.TaskGroup() as customers:
            customers.create_task(self._slow_checkouts())
            while not await self._pause(random.expovariate(1 / ORDER_EVERY)):
                customers.create_task(self._order())

    async def _pause(self, seconds: float) -> bool:
        """Waits; says whether the shop closes."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    async def _order(self) -> None:
        order = self._new_order()
        placed = await self._append(f"order-{order.order}", order)
        if await self._pause(random.uniform(0.2, 1.0)):  # noqa: S311
            return
        if random.random() < 0.15:  # noqa: S311
            refusal = PaymentDeclined(order.order, "insufficient funds")
            declined = await self._append(f"payment-{order.order}", refusal, placed)
            await self._append(f"order-{order.order}", OrderCancelled(order.order, "not paid"), declined)
            return
        payment = PaymentReceived(order.order, order.region, order.total)
        await self._append(f"payment-{order.order}", payment, placed)

    def _new_order(self) -> OrderPlaced:
        self._orders += 1
        items = random.sample(sorted(_PRODUCTS), random.randint(1, 3))  # noqa: S311
        return OrderPlaced(
            order=self._orders,
            customer=random.choice(_CUSTOMERS),  # noqa: S311
            region=random.choice(_REGIONS),  # noqa: S311
            total=sum(_PRODUCTS[item] for item in items),
            express=random.random() < 0.2,  # noqa: S311
            items=items,
        )

    async def _append(self, stream: str, payload: Payload, cause: UUID | None = None) -> UUID:
        """Appends a message, and returns its id."""
        message = related(payload, cause=cause)
        self._count((await self.mp.append(stream, message)).position)
        return UUID(str(message.id))

    def _count(self, position: int) -> None:
        self.appended += 1
        self.newest = max(self.newest, position)
        self._recent.append(monotonic())

    async def _slow_checkouts(self) -> None:
        pause = FIRST_SLOW_CHECKOUT
        while not await self._pause(pause):
            await self._slow_checkout()
            pause = SLOW_CHECKOUT_EVERY

    async def _slow_checkout(self) -> None:
        """Takes a position early and commits it late, as a slow web request or a batch job would."""
        conninfo = make_conninfo(self.mp.url, application_name="slow checkout")
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            order = self._new_order()
            result = await self.mp.append(f"order-{order.order}", related(order), connection=connection)
            self.late = Late(result.position, monotonic())
            self.tell(f"a slow checkout has position {result.position:,} and does not commit: all wait before it")
            await self._pause(SLOW_CHECKOUT_TAKES)
            await connection.commit()
        self.late_positions.append(result.position)
        self._count(result.position)
        self.late = None
        behind = self.newest - result.position
        self.tell(f"it commits: {result.position:,} and the {behind} after it go out, in order")
