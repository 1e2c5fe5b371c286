"""Decides what goes where and what is done: pure, without I/O, clock or chance of its own.

`Lane` is the whole of it for whoever drives it. A message enters by `Lane.fill` (`board`, `window`, `keys`), is
matched with a consumer (`router`, `routes`), handed out (`claims`) and settled; what has to be stored of it goes
out with an `exchange` (`ledger`).
"""

from milepost.dispatch.breaker import Breaker
from milepost.dispatch.delivery import Delivery, Dispatched, Row, State, Suspicion
from milepost.dispatch.exchange import (
    Answer,
    Ask,
    Counts,
    Cursor,
    Exchange,
    HeldKey,
    LaneState,
    Loaded,
    Move,
    Tally,
    Write,
)
from milepost.dispatch.lane import Lane
from milepost.dispatch.limit import LimitReached
from milepost.dispatch.retry import Retry
from milepost.dispatch.route import Route
from milepost.dispatch.routes import Routes
from milepost.dispatch.settings import Settings

__all__ = [
    "Answer",
    "Ask",
    "Breaker",
    "Counts",
    "Cursor",
    "Delivery",
    "Dispatched",
    "Exchange",
    "HeldKey",
    "Lane",
    "LaneState",
    "LimitReached",
    "Loaded",
    "Move",
    "Retry",
    "Route",
    "Routes",
    "Row",
    "Settings",
    "State",
    "Suspicion",
    "Tally",
    "Write",
]
