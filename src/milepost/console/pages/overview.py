"""The overview: what needs attention, every subscription, the log, who works."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.attention import attention
from milepost.console.entry import Entry
from milepost.console.history import History
from milepost.console.settings import NEW
from milepost.console.snapshot import Snapshot
from milepost.console.visit import Visit
from milepost.engine.info import SubscriptionInfo
from milepost.server.access.reach import Within
from milepost.server.access.role import Role

ENTRY = Entry("Overview", "")


@dataclass(frozen=True)
class Row:
    """One subscription in the table."""

    info: SubscriptionInfo
    address: str
    held: int
    """How many of its lanes somebody has."""
    lags: list[tuple[float, float]]
    """In the last minutes."""


def _row(info: SubscriptionInfo, history: History) -> Row:
    address = f"{info.group}/{info.name}"
    held = sum(lane.owner is not None for lane in info.lanes)
    return Row(info, address, held, [(point.at, point.lag) for point in history.of(address)])


@get("/", opt=needs(Role.READ, Within.ITSELF))
async def overview(visit: NamedDependency[Visit]) -> Answer:
    """How everything stands."""
    history = visit.live_pages.watch.history

    async def load(snapshot: Snapshot) -> Mapping[str, Any]:
        return {
            "snapshot": snapshot,
            "attention": attention(snapshot),
            "rows": [_row(info, history) for info in snapshot.subscriptions],
            "group": visit.mp.settings["group"].value,
            "new": NEW,
            "log_rates": history.log_rates(),
            "log_rate": history.log_rate(snapshot.taken),
        }

    return await visit.live("overview.html", load)


HANDLERS = (overview,)
