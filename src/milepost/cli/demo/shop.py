"""The shop: orders, payments, cancellations, and now and then a checkout that takes its time to commit."""

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from milepost.app import Milepost
from milepost.log.message import NewMessage

ORDER_EVERY = 0.08
"""Seconds between two orders, on average; each has two or three messages."""
FIRST_SLOW_CHECKOUT = 2.5
SLOW_CHECKOUT_EVERY = 6.0
SLOW_CHECKOUT_TAKES = 3.0
"""Seconds that its transaction stays open after it has appended."""

_PRODUCTS = {"tea, 100 g": 890, "teapot": 4200, "cup": 1250, "kettle": 5900, "honey": 740, "biscuits": 460}
_CUSTOMERS = ("Amara", "Björn", "Chiara", "Dmitri", "Esther", "Farid", "Grace", "Hiroshi", "Inês", "Jakub")
_REGIONS = ("EU", "UK", "US", "JP")


@dataclass
class Late:
    """A message that has its position and is not committed yet."""

    position: int
    since: float


@dataclass
class Shop:
    """Appends as a shop would, and remembers what it appended."""

    mp: Milepost
    late: Late | None = None
    late_positions: list[int] = field(default_factory=list)
    appended: int = 0
    newest: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    returned: dict[int, float] = field(default_factory=dict)
    """When the append of a position returned, for those that nothing held back."""
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
        self.events.append((self.seconds, text))

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
        number, order = self._new_order()
        await self._append(f"order-{number}", order)
        if await self._pause(random.uniform(0.2, 1.0)):  # noqa: S311
            return
        total = order.properties["total"]
        if random.random() < 0.15:  # noqa: S311
            await self._append(
                f"payment-{number}", _message("payment.declined", total=total, reason="insufficient funds")
            )
            await self._append(f"order-{number}", _message("order.cancelled", reason="not paid"))
            return
        await self._append(f"payment-{number}", _message("payment.received", total=total, method="card"))
        if random.random() < 0.7:  # noqa: S311
            await self._append(f"order-{number}", _message("order.shipped", parcels=1))

    def _new_order(self) -> tuple[int, NewMessage]:
        self._orders += 1
        items = random.sample(sorted(_PRODUCTS), random.randint(1, 3))  # noqa: S311
        data: dict[str, Any] = {
            "customer": random.choice(_CUSTOMERS),  # noqa: S311
            "total": sum(_PRODUCTS[item] for item in items),
            "items": items,
        }
        properties = {"total": data["total"], "region": random.choice(_REGIONS)}  # noqa: S311
        return self._orders, NewMessage("order.placed", data, properties=properties)

    async def _append(self, stream: str, message: NewMessage) -> None:
        result = await self.mp.append(stream, message)
        self._count(result.position)
        if self.late is None:
            self.returned[result.position] = monotonic()

    def _count(self, position: int) -> None:
        self.appended += 1
        self.newest = max(self.newest, position)
        self._recent.append(monotonic())

    async def _slow_checkouts(self) -> None:
        if await self._pause(FIRST_SLOW_CHECKOUT):
            return
        while True:
            await self._slow_checkout()
            if await self._pause(SLOW_CHECKOUT_EVERY):
                return

    async def _slow_checkout(self) -> None:
        """Takes a position early and commits it late, as a slow web request or a batch job would."""
        conninfo = make_conninfo(self.mp.url, application_name="slow checkout")
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            number, order = self._new_order()
            result = await self.mp.append(f"order-{number}", order, connection=connection)
            self.late = Late(result.position, monotonic())
            self.newest = max(self.newest, result.position)
            self.tell(f"a slow checkout has position {result.position:,} and does not commit: followers wait")
            await self._pause(SLOW_CHECKOUT_TAKES)
            await connection.commit()
            self.late_positions.append(result.position)
            self._count(result.position)
            self.late = None
            behind = self.newest - result.position
            self.tell(f"it commits: followers get {result.position:,} and the {behind} after it, in order")


def _message(type: str, **data: Any) -> NewMessage:
    properties = {name: value for name, value in data.items() if name == "total"}
    return NewMessage(type, data, properties=properties)
