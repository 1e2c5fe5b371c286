"""Create subscriptions for consumers, and change them."""

import asyncio
from collections.abc import Mapping
from typing import Any

from milepost.engine.checks import checked
from milepost.engine.declare.consumer_options import (
    ConsumerSubscriptionOptions,
    IfExists,
    check_changes,
    check_if_exists,
)
from milepost.engine.declare.declaration import (
    checked_name,
    cursor_of_start,
    refuse_beyond_end,
)
from milepost.engine.lanes.message_loader import MessageLoader, RowPlacer
from milepost.engine.operate.control import CONFIRM_PAUSES_SECONDS, SubscriptionControl
from milepost.engine.operate.info import SubscriptionOverview
from milepost.engine.runtime import Runtime, find_subscription, subscription_store
from milepost.errors import AlreadyExists, Busy, DeclaredInCode, NotConfirmed
from milepost.progress.protocol import SubscriptionDefinition

MAX_REORDER_SECONDS = 60.0
"""Seconds to put another order in force where processes come and go."""
REORDER_REQUEST_SECONDS = 1.0
"""Seconds after which somebody who has taken the lane meanwhile is asked to put another order in force."""
MAX_FOLLOW_SECONDS = 60.0
"""Seconds that the process with the consumers has to follow a change."""


async def create_subscription(
    runtime: Runtime, group: str, options: ConsumerSubscriptionOptions, if_exists: IfExists
) -> str:
    """Creates a subscription, or changes it; what came of it in a word. A change is in force when this returns."""
    check_if_exists(if_exists)
    checked("group", checked_name, group)
    await runtime.services.progress.open()
    await _refuse_start_beyond_end(runtime, group, options)
    definition = await _definition_of(runtime, group, options)
    await runtime.services.cover(definition.start.end, definition.log_life)
    outcome = await subscription_store(runtime).create(definition, options.stored(), if_exists)
    address = f"{group}/{options.declaration.name}"
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
            await _change_order(runtime, definition, options)
            return "updated"
        case "updated":
            await _wait_until_followed(runtime, group, options.declaration.name)
    return outcome


async def update_subscription(runtime: Runtime, group: str, name: str, changes: Mapping[str, Any]) -> None:
    """Changes some settings of a subscription that was created; they are in force when this returns."""
    record = await find_subscription(runtime, group, name)
    check_changes(changes)
    await create_subscription(
        runtime, group, ConsumerSubscriptionOptions.from_stored(name, record.settings).changed(changes), "update"
    )


async def _wait_until_followed(runtime: Runtime, group: str, name: str) -> None:
    """Waits until the process with the consumers follows a change."""
    stored, end = subscription_store(runtime), asyncio.get_running_loop().time() + MAX_FOLLOW_SECONDS
    record = await find_subscription(runtime, group, name)
    pause, longest = CONFIRM_PAUSES_SECONDS
    while others := await stored.unfollowed(record.id, record.acted):
        if asyncio.get_running_loop().time() >= end:
            raise NotConfirmed(f"{group}/{name}", others, "it is changed")
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, longest)


async def _refuse_start_beyond_end(runtime: Runtime, group: str, options: ConsumerSubscriptionOptions) -> None:
    """Where one begins counts when it is new, and never again."""
    start = options.declaration.start
    if isinstance(start, int) and options.declaration.name not in await runtime.services.progress.known(group):
        await refuse_beyond_end("start", start, runtime.log)


async def _definition_of(
    runtime: Runtime, group: str, options: ConsumerSubscriptionOptions
) -> SubscriptionDefinition:
    life = await runtime.services.progress.life()
    start, since = await cursor_of_start(options.declaration.start, runtime.log)
    return SubscriptionDefinition(
        group=group,
        name=options.declaration.name,
        lanes=1,
        selects=options.declaration.selects(),
        orders=options.declaration.orders,
        start=start,
        since=since,
        paused=options.declaration.paused,
        life=life,
        log_life=None if isinstance(options.declaration.start, int) else runtime.log.known_horizon.life,
    )


async def _change_order(
    runtime: Runtime, definition: SubscriptionDefinition, options: ConsumerSubscriptionOptions
) -> None:
    """Another order, of a subscription whose lane nobody has; somebody may come meanwhile, and do it."""
    end = asyncio.get_running_loop().time() + MAX_REORDER_SECONDS
    while True:
        try:
            await _rekey_rows(runtime, definition, options)
        except NotConfirmed:
            if asyncio.get_running_loop().time() >= end:
                raise
        else:
            return
        if await subscription_store(runtime).create(definition, options.stored(), "update") != "reorders":
            await _wait_until_followed(runtime, definition.group, definition.name)
            return


async def _rekey_rows(
    runtime: Runtime, definition: SubscriptionDefinition, options: ConsumerSubscriptionOptions
) -> None:
    """Rows get their new keys behind a barrier."""
    standing = await SubscriptionOverview(runtime).standing(definition.group, definition.name)
    rows = MessageLoader(runtime.log)
    async with SubscriptionControl(runtime, standing).behind_barrier(
        "its order changes", REORDER_REQUEST_SECONDS
    ) as (stands, barrier):
        places = RowPlacer(options.declaration.ordered_by, 1, rows)
        positions = await subscription_store(runtime).row_positions(stands.id)
        placed = await places.all(positions)
        if not await subscription_store(runtime).reorder(stands.id, barrier, definition, options.stored(), placed):
            raise Busy(f"{definition.group}/{definition.name}: somebody took it back meanwhile: try again")
