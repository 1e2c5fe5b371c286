"""Creates subscriptions for consumers, changes them, and finds them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from milepost.engine.consuming.options import Created
from milepost.engine.control import PAUSED, PAUSES, Control
from milepost.engine.declaration import a_name
from milepost.engine.declaring import RowPlaces
from milepost.engine.info import Overview
from milepost.engine.place import Place
from milepost.engine.rows import Rows
from milepost.engine.start import refuse_beyond_end, start_of
from milepost.engine.unknown import unknown_subscription
from milepost.engine.values import checked
from milepost.errors import (
    AlreadyExists,
    Busy,
    DeclaredInCode,
    MilepostError,
    NotConfirmed,
)
from milepost.progress.created import PostgresCreated
from milepost.progress.postgresql import ROWS
from milepost.progress.protocol import Definition, Opened

REORDER = 60.0
"""Seconds to put another order in force where processes come and go."""
COMES = 1.0
"""Seconds after which somebody who has taken the lane meanwhile is asked to put another order in force."""
FOLLOW = 60.0
"""Seconds that the process with the consumers has to follow a change."""
IfExists = Literal["update", "error", "ignore"]


def stored_in(place: Place) -> PostgresCreated:
    """Where they are kept; an error if progress is kept elsewhere."""
    database = place.services.database
    if database is None:
        raise MilepostError("progress is kept outside of PostgreSQL: consumers need it in a database")
    return PostgresCreated(database, place.log.statements.schema)


async def find(place: Place, group: str, name: str) -> Opened:
    """A subscription as it is stored; raises `UnknownSubscription`."""
    opened = await stored_in(place).find(group, name)
    if opened is None:
        known = [(standing.group, standing.name) for standing in await place.services.progress.standings()]
        raise unknown_subscription(group, name, known, otherwise=": create it with mp.create_subscription")
    return opened


async def create(place: Place, group: str, created: Created, if_exists: IfExists) -> str:
    """Creates a subscription, or changes it; what came of it in a word. A change is in force when this returns."""
    check_if_exists(if_exists)
    checked("group", a_name, group)
    await place.services.progress.open()
    await _refuse_start(place, group, created)
    definition = await _definition(place, group, created)
    await place.services.cover(definition.start.end, definition.log_life)
    outcome = await stored_in(place).create(definition, created.stored(), if_exists)
    address = f"{group}/{created.declaration.name}"
    match outcome:
        case "in_code":
            raise DeclaredInCode(f"{address} is declared by a program, with handlers: choose another name")
        case "exists" if if_exists == "error":
            raise AlreadyExists(f'{address} exists already: if_exists="update" changes it')
        case "tracks":
            raise ValueError(
                f"tracking: {address} tracks otherwise, which stays so: create another subscription, "
                "with start= the position of this one's cursor, and delete this one"
            )
        case "reorders":
            await _reorder(place, definition, created)
            return "updated"
        case "updated":
            await _followed(place, group, created.declaration.name)
    return outcome


async def update(place: Place, group: str, name: str, changes: Mapping[str, Any]) -> None:
    """Changes some settings of a subscription that was created; they are in force when this returns."""
    opened = await find(place, group, name)
    check_changes(changes)
    await create(place, group, Created.from_stored(name, opened.settings).changed(changes), "update")


def check_if_exists(value: str) -> None:
    """Refuses another word."""
    if value not in ("update", "error", "ignore"):
        raise ValueError(f'if_exists: "update", "error" or "ignore" is wanted, not {value!r}')


def check_changes(changes: Mapping[str, Any]) -> None:
    """Refuses what is no change of a subscription."""
    if not changes:
        raise ValueError("nothing to update: name an option and its new value")
    if "start" in changes:
        raise ValueError("start: it has begun already; move it instead, to any place that start can name")
    if "paused" in changes:
        raise ValueError(PAUSED)


async def _followed(place: Place, group: str, name: str) -> None:
    """Waits until the process with the consumers follows a change."""
    stored, end = stored_in(place), asyncio.get_running_loop().time() + FOLLOW
    opened = await find(place, group, name)
    pause, longest = PAUSES
    while others := await stored.unfollowed(opened.id, opened.acted):
        if asyncio.get_running_loop().time() >= end:
            raise NotConfirmed(f"{group}/{name}", others, "it is changed")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, longest)


async def _refuse_start(place: Place, group: str, created: Created) -> None:
    """Where one begins counts when it is new, and never again."""
    start = created.declaration.start
    if isinstance(start, int) and created.declaration.name not in await place.services.progress.known(group):
        await refuse_beyond_end("start", start, place.log)


async def _definition(place: Place, group: str, created: Created) -> Definition:
    life = await place.services.progress.life()
    start, since = await start_of(created.declaration.start, place.log)
    return Definition(
        group=group,
        name=created.declaration.name,
        lanes=1,
        selects=created.declaration.selects(),
        orders=created.declaration.orders,
        start=start,
        since=since,
        paused=created.declaration.paused,
        life=life,
        log_life=None if isinstance(created.declaration.start, int) else place.log.horizon.life,
    )


async def _reorder(place: Place, definition: Definition, created: Created) -> None:
    """Another order, of a subscription whose lane nobody has; somebody may come meanwhile, and do it."""
    end = asyncio.get_running_loop().time() + REORDER
    while True:
        try:
            await _rekey(place, definition, created)
        except NotConfirmed:
            if asyncio.get_running_loop().time() >= end:
                raise
        else:
            return
        if await stored_in(place).create(definition, created.stored(), "update") != "reorders":
            await _followed(place, definition.group, definition.name)
            return


async def _rekey(place: Place, definition: Definition, created: Created) -> None:
    """Rows get their new keys behind a barrier."""
    standing = await Overview(place).standing(definition.group, definition.name)
    rows = Rows(place.log.database, place.reader)
    async with Control(place, standing).behind_barrier("its order changes", COMES) as (stands, barrier):
        places = RowPlaces(created.declaration.ordered_by, 1, rows)
        positions = await stored_in(place).row_positions(stands.id)
        placed = [each for page in batched(positions) for each in await places(page)]
        if not await stored_in(place).reorder(stands.id, barrier, definition, created.stored(), placed):
            raise Busy(f"{definition.group}/{definition.name}: somebody took it back meanwhile: try again")


def batched(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Some at a time."""
    for start in range(0, len(positions), ROWS):
        yield positions[start : start + ROWS]
