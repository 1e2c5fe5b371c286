"""What a subscription is: what it selects, how it orders, what operators set."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from milepost.app import Milepost
from milepost.log.statements import Statements


@dataclass(frozen=True)
class Definition:
    """The newest definition of a subscription."""

    number: int
    selects: Mapping[str, Any]
    orders: str
    program: str
    """What declared it, and in which version."""
    since: datetime
    created: datetime
    limits: Mapping[str, Any]
    """What operators set beside it."""
    replay: int
    """Positions that a replay brings again, those that it has brought included; 0: there is none."""


async def definition_of(mp: Milepost, group: str, name: str) -> Definition | None:
    """What is stored of it; None if it is not known, or progress is kept elsewhere."""
    database = mp.services.database
    if database is None:
        return None
    statement = Statements(mp.settings["schema"].value, "milepost.console").get("definition")
    rows = await database.execute(statement, {"group": group, "name": name})
    if not rows:
        return None
    number, selects, orders, program, since, created, limits, replay = rows[0]
    return Definition(
        number, msgspec.json.decode(selects), orders, program, since, created, msgspec.json.decode(limits), replay
    )
