"""What happens in the shop, as messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

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
    """It was not paid."""

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
    """A payment did not."""

    order: int
    reason: str


@dataclass(frozen=True)
class ParcelReady:
    """A parcel is packed, and waits for a courier."""

    order: int
    region: str
    express: bool


Payload = OrderPlaced | OrderCancelled | PaymentReceived | PaymentDeclined | ParcelReady

_TYPES: Mapping[type[Payload], tuple[str, Sequence[str]]] = {
    OrderPlaced: ("order.placed", ("total", "region", "express")),
    OrderCancelled: ("order.cancelled", ()),
    PaymentReceived: ("payment.received", ("total", "region")),
    PaymentDeclined: ("payment.declined", ()),
    ParcelReady: ("parcel.ready", ("region", "express")),
}
"""The type that each is stored as, and what filters may look at."""


def register(mp: Milepost) -> None:
    """Tells a program of these classes."""
    for cls, (name, properties) in _TYPES.items():
        mp.message(name, properties=properties)(cls)


def related(payload: Payload, *, cause: UUID | None = None) -> NewMessage:
    """A message that says which order it belongs to, and which message caused it."""
    name, properties = _TYPES[type(payload)]
    causation = {} if cause is None else {"causation_id": str(cause)}
    return NewMessage(
        name,
        payload,
        properties={each: getattr(payload, each) for each in properties},
        metadata={"correlation_id": f"checkout-{payload.order}", **causation},
        id=uuid4(),
    )
