"""The table that handlers write to in the transaction of their progress: one row a message, if all is well."""

import asyncio
from collections import Counter, defaultdict

from engine.faults.load import Load
from milepost import Milepost
from patience import within
from support import qualified, rows_by_state


async def create(mp: Milepost) -> None:
    """Makes the table. Nothing in it is unique but the row: a message that took effect twice has two."""
    statement = "create table {}.effects (stream text, version bigint, row bigint generated always as identity)"
    await mp.log.database.execute(qualified(statement, mp), {})


async def count(mp: Milepost) -> int:
    """How many messages took effect, each counted once."""
    statement = qualified("select count(distinct (stream, version)) from {}.effects", mp)
    return int((await mp.log.database.execute(statement, {}))[0][0])


async def in_order(mp: Milepost) -> dict[str, list[int]]:
    """The versions of each stream in the order in which they took effect."""
    statement = qualified("select stream, version from {}.effects order by row", mp)
    found: dict[str, list[int]] = defaultdict(list)
    for stream, version in await mp.log.database.execute(statement, {}):
        found[stream].append(version)
    return found


async def read(mp: Milepost) -> Counter[tuple[str, int]]:
    """How often each message took effect."""
    found = await in_order(mp)
    return Counter((stream, version) for stream, versions in found.items() for version in versions)


async def until_all(mp: Milepost, load: Load, seconds: float = 60) -> None:
    """Waits until every message took effect."""

    async def missing() -> str:
        return f"all but {sorted(load.once() - await read(mp))}; rows {await rows_by_state(mp)}"

    async with within(seconds, missing):
        while await count(mp) < load.total:
            await asyncio.sleep(0.05)
