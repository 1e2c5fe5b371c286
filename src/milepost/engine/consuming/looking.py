"""What the consumers of a subscription do, seen from anywhere."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.engine.consuming.created import find, stored_in
from milepost.engine.consuming.statistics import (
    NOTHING,
    ConsumerStatistics,
    Figures,
    SubscriptionStatistics,
    Unrouted,
    percentile,
)
from milepost.engine.info import Overview
from milepost.engine.place import Place
from milepost.errors import MilepostError
from milepost.progress.created import Told
from milepost.progress.protocol import Opened
from milepost.progress.standing import Standing


class OwnerStatistics(msgspec.Struct, frozen=True):
    """What the owner of a subscription tells."""

    all: Figures
    """All its consumers together, also those that left."""
    consumers: tuple[ConsumerStatistics, ...]


_decoder = msgspec.json.Decoder(OwnerStatistics)
_NOTHING = OwnerStatistics(NOTHING, ())


async def statistics(place: Place, group: str, name: str) -> SubscriptionStatistics:
    """How a subscription stands, as its owner told last."""
    opened = await find(place, group, name)
    if opened.in_code:
        raise MilepostError(
            f"{group}/{name} has handlers, not consumers: its `info` tells rate, in flight and errors"
        )
    told = await stored_in(place).told(opened.id)
    standing = await Overview(place).standing(group, name)
    by_owner = _NOTHING if told.statistics is None else _decoder.decode(told.statistics)
    return SubscriptionStatistics(
        owner=told.owner,
        at=told.at,
        unrouted=standing.unrouted,
        oldest_unrouted=await _oldest_unrouted(place, told),
        consumers=by_owner.consumers,
        **{**msgspec.structs.asdict(by_owner.all), **_pulled(opened, standing)},
    )


def _pulled(opened: Opened, standing: Standing) -> dict[str, Any]:
    """What is known of one for pulling, which has no owner: who pulls tells it now and then."""
    if opened.settings["tracking"] != "all":
        return {}
    told = standing.told
    latencies = sorted(told.latencies)
    return {
        "in_flight": told.in_flight,
        "rate": told.rate,
        **{f"latency_{percent}": percentile(latencies, percent) for percent in (50, 90, 99)},
        "last_error": told.error,
        "last_error_at": told.error_at,
    }


async def _oldest_unrouted(place: Place, told: Told) -> Unrouted | None:
    if told.unrouted is None or told.unrouted_since is None:
        return None
    messages = await place.reader.messages_at(place.log.database, [told.unrouted])
    now = datetime.fromtimestamp(told.now, UTC)
    age = max(0.0, (now - messages[0].time).total_seconds()) if messages else None
    return Unrouted(position=told.unrouted, since=told.unrouted_since, age=age)
