"""Where a new subscription begins."""

from datetime import datetime
from typing import Literal

from milepost.dispatch import Cursor
from milepost.log.log import Log

Start = Literal["beginning", "now"] | datetime | int


async def start_of(start: Start, log: Log) -> Cursor:
    """The cursor that a start means, exact against messages that commit late.

    `now` is the horizon, with what is visible above it done; a time is before the first message of that time or
    later, with what is older done, but never above the horizon, where older ones may still appear.
    """
    if isinstance(start, int):
        return Cursor(start)
    if start == "beginning":
        return Cursor(0)
    horizon = await log.horizon.look()
    if isinstance(start, datetime):
        return await _since(start, horizon, log)
    rows = await log.database.execute(log.statements.get("visible_above"), {"horizon": horizon})
    return Cursor(horizon, tuple((low, high) for low, high in rows))


async def _since(moment: datetime, horizon: int, log: Log) -> Cursor:
    rows = await log.database.execute(log.statements.get("position_before"), {"since": moment})
    low = min(int(rows[0][0]), horizon)
    bounds = {"low": low, "high": horizon, "moment": moment}
    older = await log.database.execute(log.statements.get("visible_before"), bounds)
    return Cursor(low, tuple((first, last) for first, last in older))
