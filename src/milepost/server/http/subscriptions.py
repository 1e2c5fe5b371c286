"""Subscriptions: how they stand, and what operators do to them."""

from typing import Annotated

from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET

from milepost.app import Milepost
from milepost.engine.consuming.options import Created
from milepost.engine.consuming.statistics import SubscriptionStatistics
from milepost.engine.control import Plan
from milepost.engine.declaration import a_name
from milepost.engine.info import SubscriptionInfo
from milepost.engine.managed import ManagedSubscription
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.operation import operation
from milepost.server.http.parameters import Force, Group, Name, Seconds
from milepost.server.limits import LONGEST_WAIT
from milepost.server.problems import (
    ALREADY_EXISTS,
    BUSY,
    DECLARED_IN_CODE,
    FILTER,
    GOING_AWAY,
    NOT_CONFIRMED,
    NOT_POSSIBLE,
    TOO_LARGE,
    UNKNOWN_SUBSCRIPTION,
)
from milepost.server.stopping import Stopping
from milepost.server.wire.action import Move, Moved, Replay, Replayed
from milepost.server.wire.place import AN_END, ANYWHERE, end_of, place_of
from milepost.server.wire.subscription import SubscriptionChanges, Subscriptions, SubscriptionToCreate
from milepost.server.wire.values import checked

ONE = "/{group:str}/{name:str}"
_DRAINS = (UNKNOWN_SUBSCRIPTION, BUSY, NOT_CONFIRMED, NOT_POSSIBLE, GOING_AWAY)
"""What can go wrong where workers have to let a subscription go."""

PlaceText = Annotated[
    str,
    QueryParameter(
        description="`beginning`, `now`, a time in RFC 3339, or a position.", required=True, schema_extra=ANYWHERE
    ),
]
EndText = Annotated[
    str | None, QueryParameter(description="The last position, or a time in RFC 3339.", schema_extra=AN_END)
]


def managed(mp: Milepost, group: str, name: str) -> ManagedSubscription:
    """The subscription that a path names."""
    return mp.manage(f"{group}/{name}")


async def _shown(reach: Reach, subscription: ManagedSubscription) -> SubscriptionInfo:
    """How a subscription stands; it may have come to select more than the scope has since the request came."""
    info = await subscription.info()
    reach.check_shown(info.settings)
    return info


@get("/", operation_id="list_subscriptions", opt=operation(Role.READ, within=Within.ITSELF))
async def list_(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    group: Annotated[str | None, QueryParameter(description="Only those of this group.")] = None,
) -> Subscriptions:
    """Every subscription of every group: its status, its lag, what needs attention, lanes and their owners.

    With a token that has a scope, those that are within it.
    """
    if group is not None:
        reach.scope.check_group(group)
    found = await mp.subscriptions()
    # Asked last: one that came to select more since then is left out.
    sees = await reach.sees()
    return Subscriptions(
        [info for info in found if sees(info.group, info.name) and (group is None or info.group == group)]
    )


@post(
    "/",
    status_code=200,
    operation_id="create_subscription",
    opt=operation(
        Role.OPERATE,
        FILTER,
        TOO_LARGE,
        ALREADY_EXISTS,
        DECLARED_IN_CODE,
        BUSY,
        NOT_CONFIRMED,
        NOT_POSSIBLE,
        within=Within.ITSELF,
    ),
)
async def create(
    mp: NamedDependency[Milepost], reach: NamedDependency[Reach], data: JSONBody[SubscriptionToCreate]
) -> SubscriptionInfo:
    """Creates a durable subscription for consumers, or changes it to this; the answer is how it stands then.

    With a token that has a scope, its group has to be one of the token's, and it has to select categories of the
    token's and no others.
    """
    options = data.options()
    with checked("subscription"):
        Created.of(data.name, options)
    group = mp.settings["group"].value if data.group is UNSET else _group(data.group)
    await reach.check_creation(group, data.name, options)
    address = f"{group}/{data.name}"
    with checked("subscription"):
        await mp.create_subscription(address, if_exists=data.if_exists, **options)
    return await _shown(reach, mp.manage(address))


def _group(given: str) -> str:
    with checked("group"):
        return a_name(given)


@get(
    ONE,
    operation_id="show_subscription",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, within=Within.SUBSCRIPTION),
)
async def show(
    mp: NamedDependency[Milepost], reach: NamedDependency[Reach], group: Group, name: Name
) -> SubscriptionInfo:
    """How a subscription stands."""
    return await _shown(reach, managed(mp, group, name))


@get(
    f"{ONE}/statistics",
    operation_id="statistics",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def statistics(mp: NamedDependency[Milepost], group: Group, name: Name) -> SubscriptionStatistics:
    """What its consumers do, as its owner told within the last seconds. Asking changes nothing."""
    return await managed(mp, group, name).statistics()


@patch(
    ONE,
    operation_id="update_subscription",
    opt=operation(
        Role.OPERATE,
        FILTER,
        TOO_LARGE,
        UNKNOWN_SUBSCRIPTION,
        DECLARED_IN_CODE,
        BUSY,
        NOT_CONFIRMED,
        NOT_POSSIBLE,
        within=Within.SUBSCRIPTION,
    ),
)
async def update(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    group: Group,
    name: Name,
    data: JSONBody[SubscriptionChanges],
) -> SubscriptionInfo:
    """Changes settings of a subscription that was created, without dropping consumers; the others stay.

    One that a program declares can only be limited, by `concurrency`.
    """
    subscription = managed(mp, group, name)
    options = data.options()
    await reach.check_change(group, name, options)
    with checked("subscription"):
        await subscription.update(**options)
    return await _shown(reach, subscription)


@delete(
    ONE,
    status_code=204,
    operation_id="delete_subscription",
    opt=operation(Role.OPERATE, *_DRAINS, within=Within.SUBSCRIPTION),
)
async def delete_(
    mp: NamedDependency[Milepost],
    stopping: NamedDependency[Stopping],
    group: Group,
    name: Name,
    timeout: Seconds = LONGEST_WAIT,
    force: Force = False,
) -> None:
    """Forgets a subscription, its progress and its deliveries."""
    await stopping.unless_begun(managed(mp, group, name).delete(timeout=timeout, force=force))


@post(
    f"{ONE}/pause",
    status_code=200,
    operation_id="pause_subscription",
    opt=operation(Role.OPERATE, *_DRAINS, within=Within.SUBSCRIPTION),
)
async def pause(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    stopping: NamedDependency[Stopping],
    group: Group,
    name: Name,
    timeout: Seconds = LONGEST_WAIT,
    force: Force = False,
) -> SubscriptionInfo:
    """Nothing of it runs when this answers, in no process, until it is resumed; also after restarts."""
    subscription = managed(mp, group, name)
    await stopping.unless_begun(subscription.pause(timeout=timeout, force=force))
    return await _shown(reach, subscription)


@post(
    f"{ONE}/resume",
    status_code=200,
    operation_id="resume_subscription",
    opt=operation(Role.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def resume(
    mp: NamedDependency[Milepost], reach: NamedDependency[Reach], group: Group, name: Name
) -> SubscriptionInfo:
    """It goes on where it was."""
    subscription = managed(mp, group, name)
    await subscription.resume()
    return await _shown(reach, subscription)


@get(
    f"{ONE}/move",
    operation_id="plan_move",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def plan_move(mp: NamedDependency[Milepost], group: Group, name: Name, to: PlaceText) -> Plan:
    """What a move would do; nothing is done."""
    return await managed(mp, group, name).plan_move(place_of("to", to))


@post(
    f"{ONE}/move",
    status_code=200,
    operation_id="move_subscription",
    opt=operation(Role.OPERATE, *_DRAINS, within=Within.SUBSCRIPTION),
)
async def move(
    mp: NamedDependency[Milepost],
    stopping: NamedDependency[Stopping],
    group: Group,
    name: Name,
    data: JSONBody[Move],
    timeout: Seconds = LONGEST_WAIT,
    force: Force = False,
) -> Moved:
    """Goes on elsewhere: messages between are handled again, or never. Look at the plan first."""
    to = place_of("to", data.to)
    return Moved(await stopping.unless_begun(managed(mp, group, name).move(to, timeout=timeout, force=force)))


@get(
    f"{ONE}/replay",
    operation_id="plan_replay",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def plan_replay(
    mp: NamedDependency[Milepost],
    group: Group,
    name: Name,
    start: PlaceText,
    end: EndText = None,
) -> Plan:
    """What a replay would do; nothing is done."""
    first, last = place_of("start", start), end_of("end", end)
    with checked("end"):
        return await managed(mp, group, name).plan_replay(first, last)


@post(
    f"{ONE}/replay",
    status_code=200,
    operation_id="replay_subscription",
    opt=operation(Role.OPERATE, *_DRAINS, within=Within.SUBSCRIPTION),
)
async def replay(
    mp: NamedDependency[Milepost],
    stopping: NamedDependency[Stopping],
    group: Group,
    name: Name,
    data: JSONBody[Replay],
    timeout: Seconds = LONGEST_WAIT,
    force: Force = False,
) -> Replayed:
    """Repeats what was handled after `start` and up to `end`, marked as a replay; then goes on where it was."""
    first, last = place_of("start", data.start), end_of("end", data.end)
    with checked("end"):
        again = await stopping.unless_begun(
            managed(mp, group, name).replay(first, last, timeout=timeout, force=force)
        )
    return Replayed(again)


HANDLERS = (
    list_,
    create,
    show,
    statistics,
    update,
    delete_,
    pause,
    resume,
    plan_move,
    move,
    plan_replay,
    replay,
)
