"""The shop: its messages, its orders and payments, and now and then a checkout that commits late."""

import asyncio
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from milepost.app import Milepost
from milepost.log.message import NewMessage


@dataclass(frozen=True)
class OrderPlaced:
    """A customer has ordered; amounts are in cents."""

    order: int
    customer: str
    region: str
    total: int
    express: bool
    items: list[str]


@dataclass(frozen=True)
class OrderCancelled:
    """An order was cancelled, since it was not paid."""

    order: int
    reason: str


@dataclass(frozen=True)
class PaymentReceived:
    """A payment came in."""

    order: int
    region: str
    total: int


@dataclass(frozen=True)
class PaymentDeclined:
    """A payment was declined."""

    order: int
    reason: str


@dataclass(frozen=True)
class ParcelReady:
    """A parcel is packed, and waits for a courier."""

    order: int
    region: str
    express: bool


ShopPayload = OrderPlaced | OrderCancelled | PaymentReceived | PaymentDeclined | ParcelReady

_TYPES: Mapping[type[ShopPayload], tuple[str, Sequence[str]]] = {
    OrderPlaced: ("order.placed", ("total", "region", "express")),
    OrderCancelled: ("order.cancelled", ()),
    PaymentReceived: ("payment.received", ("total", "region")),
    PaymentDeclined: ("payment.declined", ()),
    ParcelReady: ("parcel.ready", ("region", "express")),
}
"""The type that each is stored as, and what filters may look at."""


def register_messages(mp: Milepost) -> None:
    """Register the classes of the shop's messages with a program."""
    for cls, (name, properties) in _TYPES.items():
        mp.message(name, properties=properties)(cls)


def shop_message(payload: ShopPayload, *, cause: UUID | None = None) -> NewMessage:
    """Return a message with the ids of its order and of the message that caused it."""
    name, properties = _TYPES[type(payload)]
    causation = {} if cause is None else {"causation_id": str(cause)}
    return NewMessage(
        name,
        payload,
        properties={each: getattr(payload, each) for each in properties},
        metadata={"correlation_id": f"checkout-{payload.order}", **causation},
        id=uuid4(),
    )


ORDER_SECONDS = 0.08
"""Seconds between two orders, on average; each has two to four messages."""
FIRST_SLOW_CHECKOUT_SECONDS = 2.5
SLOW_CHECKOUT_PAUSE_SECONDS = 20.0
SLOW_CHECKOUT_OPEN_SECONDS = 3.0
"""Seconds that its transaction stays open after it has appended."""
MAX_EVENTS = 200
"""Events that are remembered."""

_PRODUCTS = {"tea, 100 g": 890, "teapot": 4200, "cup": 1250, "kettle": 5900, "honey": 740, "biscuits": 460}
_CUSTOMERS = ("Amara", "Björn", "Chiara", "Dmitri", "Esther", "Farid", "Grace", "Hiroshi", "Inês", "Jakub")
_REGIONS = ("EU", "UK", "US", "JP")


@dataclass(frozen=True)
class LateMessage:
    """A message that has its position and is not committed yet."""

    position: int
    since: float


@dataclass
class Shop:
    """A shop that appends orders and payments, and notes events for the screen."""

    mp: Milepost
    late: LateMessage | None = None
    late_positions: list[int] = field(default_factory=list)
    appended: int = 0
    newest: int = 0
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS))
    noted: int = 0
    """Number of events so far, with those that are forgotten."""
    _begun: float = field(default_factory=monotonic)
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _orders: int = 1000
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def seconds(self) -> float:
        """Seconds since it opened."""
        return monotonic() - self._begun

    @property
    def rate(self) -> float:
        """Messages a second, over the last two seconds."""
        since = monotonic() - 2
        return sum(when > since for when in self._recent) / min(2.0, max(0.1, self.seconds))

    def note(self, text: str) -> None:
        """Note an event for the screen."""
        self.noted += 1
        self.events.append((self.seconds, text))

    async def open(self) -> bool:
        """Go on after the last order of the log. Return True if there was one."""
        async for message in self.mp.read(category="order", types="order.placed", backwards=True, limit=1):
            self._orders = max(self._orders, int(message.stream.removeprefix("order-")))
            return True
        return False

    def close(self) -> None:
        """Take no more orders. Those under way are finished."""
        self._closing.set()

    async def run(self) -> None:
        """Sell until the shop is closed."""
        async with asyncio.TaskGroup() as customers:
            customers.create_task(self._slow_checkouts())
            while not await self._pause(random.expovariate(1 / ORDER_SECONDS)):
                customers.create_task(self._order())

    async def _pause(self, seconds: float) -> bool:
        """Wait. Return True if the shop closes meanwhile."""
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

    async def _append(self, stream: str, payload: ShopPayload, cause: UUID | None = None) -> UUID:
        """Append a message and return its id."""
        message = shop_message(payload, cause=cause)
        self._count((await self.mp.append(stream, message)).position)
        return UUID(str(message.id))

    def _count(self, position: int) -> None:
        self.appended += 1
        self.newest = max(self.newest, position)
        self._recent.append(monotonic())

    async def _slow_checkouts(self) -> None:
        pause = FIRST_SLOW_CHECKOUT_SECONDS
        while not await self._pause(pause):
            await self._slow_checkout()
            pause = SLOW_CHECKOUT_PAUSE_SECONDS

    async def _slow_checkout(self) -> None:
        """Take a position early and commit it late, as a slow web request or a batch job would."""
        conninfo = make_conninfo(self.mp.url, application_name="slow checkout")
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            order = self._new_order()
            result = await self.mp.append(f"order-{order.order}", shop_message(order), connection=connection)
            self.late = LateMessage(result.position, monotonic())
            self.note(f"a slow checkout has position {result.position:,} and does not commit: all wait before it")
            await self._pause(SLOW_CHECKOUT_OPEN_SECONDS)
            await connection.commit()
        self.late_positions.append(result.position)
        self._count(result.position)
        self.late = None
        behind = self.newest - result.position
        self.note(f"it commits: {result.position:,} and the {behind} after it go out, in order")
