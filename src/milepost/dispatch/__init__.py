"""The rules of a lane: which message goes out next and to which consumer, and what is stored of it.

The package is pure: no I/O, no clock and no randomness but what callers pass in. Callers drive a `Lane`. The path
of a message through it:

1. `Lane.fill` takes it into memory (`lane_memory`, `window`, `keys`, `queue`).
2. `Lane.next` matches it with a consumer (`routing`) and hands it out (`claims`).
3. `Lane.ack`, `retry` and the like settle it (`retry`, `breaker`).
4. `Lane.exchange` says what to write and ask in the next transaction (`store_sync`, `exchange`).
"""

from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import DeliveryRow, DispatchedMessage, LaneDelivery, State, Suspicion
from milepost.dispatch.exchange import (
    AttemptTally,
    Cursor,
    Exchange,
    ExchangeAnswer,
    ExchangeQuery,
    ExchangeWrite,
    HeldKey,
    LaneState,
    LoadedRow,
    RowChange,
    RowCounts,
)
from milepost.dispatch.lane import Lane
from milepost.dispatch.retry import Retry
from milepost.dispatch.routing.route import Route
from milepost.dispatch.routing.routes import Routes
from milepost.dispatch.settings import LimitReached, Settings

__all__ = [
    "AttemptTally",
    "Breaker",
    "Cursor",
    "DeliveryRow",
    "DispatchedMessage",
    "Exchange",
    "ExchangeAnswer",
    "ExchangeQuery",
    "ExchangeWrite",
    "HeldKey",
    "Lane",
    "LaneDelivery",
    "LaneState",
    "LimitReached",
    "LoadedRow",
    "Retry",
    "Route",
    "Routes",
    "RowChange",
    "RowCounts",
    "Settings",
    "State",
    "Suspicion",
]
