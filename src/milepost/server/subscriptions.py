"""Subscriptions over HTTP: list, create, change, pause, resume, move, replay, delete."""

from typing import Annotated

from litestar import delete, get, patch, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter
from msgspec import UNSET

from milepost.app import Milepost
from milepost.engine.declare.consumer_options import ConsumerSubscriptionOptions
from milepost.engine.declare.declaration import checked_name
from milepost.engine.observe.statistics import SubscriptionStatistics
from milepost.engine.operate.control import Plan
from milepost.engine.operate.info import SubscriptionInfo
from milepost.engine.operate.manage import ManagedSubscription
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.handlers import ForceRelease, Group, Name, ReleaseSeconds, operation
from milepost.server.limits import MAX_WAIT_SECONDS
from milepost.server.problems import (
    ALREADY_EXISTS,
    BUSY,
    DECLARED_IN_CODE,
    FILTER,
    GOING_AWAY,
    INVALID,
    NOT_CONFIRMED,
    NOT_POSSIBLE,
    TOO_LARGE,
    UNKNOWN_SUBSCRIPTION,
    RequestRefused,
)
from milepost.server.shutdown import Shutdown
from milepost.wire.subscriptions import (
    Move,
    Moved,
    Replay,
    Replayed,
    SubscriptionChanges,
    Subscriptions,
    SubscriptionToCreate,
)
from milepost.wire.values import END_PLACE_SCHEMA, PLACE_SCHEMA, parse_end_place, parse_place, refuse_as_invalid

SUBSCRIPTION_PATH = "/{group:str}/{name:str}"
_DRAIN_PROBLEMS = (UNKNOWN_SUBSCRIPTION, BUSY, NOT_CONFIRMED, NOT_POSSIBLE, GOING_AWAY)
"""What can go wrong where workers have to let a subscription go."""

PlaceText = Annotated[
    str,
    QueryParameter(
        description="`beginning`, `now`, a time in RFC 3339, or a position.",
        required=True,
        schema_extra=PLACE_SCHEMA,
    ),
]
EndText = Annotated[
    str | None,
    QueryParameter(description="The last position, or a time in RFC 3339.", schema_extra=END_PLACE_SCHEMA),
]


def managed_subscription(mp: Milepost, group: str, name: str) -> ManagedSubscription:
    """The subscription that a path names."""
    return mp.manage(f"{group}/{name}")


async def _subscription_info(scope_guard: ScopeGuard, subscription: ManagedSubscription) -> SubscriptionInfo:
    """How a subscription stands; it may have come to select more than the scope has since the request came."""
    info = await subscription.info()
    scope_guard.check_selections_shown(info.settings)
    return info


@get("/", operation_id="list_subscriptions", opt=operation(TokenRole.READ, scope_rule=ScopeRule.ITSELF))
async def list_subscriptions(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    group: Annotated[str | None, QueryParameter(description="Only those of this group.")] = None,
) -> Subscriptions:
    """Every subscription of every group: its status, its lag, what needs attention, lanes and their owners.

    With a token that has a scope, those that are within it.
    """
    if group is not None:
        scope_guard.scope.check_group(group)
    found = await mp.subscriptions()
    # Asked last: one that came to select more since then is left out.
    sees = await scope_guard.visible_subscriptions()
    return Subscriptions(
        [info for info in found if sees(info.group, info.name) and (group is None or info.group == group)]
    )


@post(
    "/",
    status_code=200,
    operation_id="create_subscription",
    opt=operation(
        TokenRole.OPERATE,
        FILTER,
        TOO_LARGE,
        ALREADY_EXISTS,
        DECLARED_IN_CODE,
        BUSY,
        NOT_CONFIRMED,
        NOT_POSSIBLE,
        scope_rule=ScopeRule.ITSELF,
    ),
)
async def create_subscription(
    mp: NamedDependency[Milepost], scope_guard: NamedDependency[ScopeGuard], data: JSONBody[SubscriptionToCreate]
) -> SubscriptionInfo:
    """Creates a durable subscription for consumers, or changes it to this; the answer is how it stands then.

    With a token that has a scope, its group has to be one of the token's, and it has to select categories of the
    token's and no others.
    """
    options = data.options()
    with refuse_as_invalid("subscription"):
        ConsumerSubscriptionOptions.of(data.name, options)
    group = mp.settings["group"].value if data.group is UNSET else _checked_group(data.group)
    await scope_guard.check_creation(group, data.name, options)
    address = f"{group}/{data.name}"
    with refuse_as_invalid("subscription"):
        await mp.create_subscription(address, if_exists=data.if_exists, **options)
    return await _subscription_info(scope_guard, mp.manage(address))


def _checked_group(given: str) -> str:
    with refuse_as_invalid("group"):
        return checked_name(given)


@get(
    SUBSCRIPTION_PATH,
    operation_id="show_subscription",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def show_subscription(
    mp: NamedDependency[Milepost], scope_guard: NamedDependency[ScopeGuard], group: Group, name: Name
) -> SubscriptionInfo:
    """How a subscription stands."""
    return await _subscription_info(scope_guard, managed_subscription(mp, group, name))


@get(
    f"{SUBSCRIPTION_PATH}/statistics",
    operation_id="statistics",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def subscription_statistics(
    mp: NamedDependency[Milepost], group: Group, name: Name
) -> SubscriptionStatistics:
    """What its consumers do, as its owner told within the last seconds. Asking changes nothing."""
    return await managed_subscription(mp, group, name).statistics()


@patch(
    SUBSCRIPTION_PATH,
    operation_id="update_subscription",
    opt=operation(
        TokenRole.OPERATE,
        FILTER,
        TOO_LARGE,
        UNKNOWN_SUBSCRIPTION,
        DECLARED_IN_CODE,
        BUSY,
        NOT_CONFIRMED,
        NOT_POSSIBLE,
        scope_rule=ScopeRule.SUBSCRIPTION,
    ),
)
async def update_subscription(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    group: Group,
    name: Name,
    data: JSONBody[SubscriptionChanges],
) -> SubscriptionInfo:
    """Changes settings of a subscription that was created, without dropping consumers; the others stay.

    One that a program declares can only be limited, by `concurrency`.
    """
    subscription = managed_subscription(mp, group, name)
    options = data.options()
    await scope_guard.check_change(group, name, options)
    with refuse_as_invalid("subscription"):
        await subscription.update(**options)
    return await _subscription_info(scope_guard, subscription)


@delete(
    SUBSCRIPTION_PATH,
    status_code=204,
    operation_id="delete_subscription",
    opt=operation(TokenRole.OPERATE, *_DRAIN_PROBLEMS, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def delete_subscription(
    mp: NamedDependency[Milepost],
    shutdown: NamedDependency[Shutdown],
    group: Group,
    name: Name,
    timeout: ReleaseSeconds = MAX_WAIT_SECONDS,
    force: ForceRelease = False,
) -> None:
    """Forgets a subscription, its progress and its deliveries."""
    await shutdown.run_unless_stopping(managed_subscription(mp, group, name).delete(timeout=timeout, force=force))


@post(
    f"{SUBSCRIPTION_PATH}/pause",
    status_code=200,
    operation_id="pause_subscription",
    opt=operation(TokenRole.OPERATE, *_DRAIN_PROBLEMS, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def pause_subscription(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    shutdown: NamedDependency[Shutdown],
    group: Group,
    name: Name,
    timeout: ReleaseSeconds = MAX_WAIT_SECONDS,
    force: ForceRelease = False,
) -> SubscriptionInfo:
    """Nothing of it runs when this answers, in no process, until it is resumed; also after restarts."""
    subscription = managed_subscription(mp, group, name)
    await shutdown.run_unless_stopping(subscription.pause(timeout=timeout, force=force))
    return await _subscription_info(scope_guard, subscription)


@post(
    f"{SUBSCRIPTION_PATH}/resume",
    status_code=200,
    operation_id="resume_subscription",
    opt=operation(TokenRole.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def resume_subscription(
    mp: NamedDependency[Milepost], scope_guard: NamedDependency[ScopeGuard], group: Group, name: Name
) -> SubscriptionInfo:
    """It goes on where it was."""
    subscription = managed_subscription(mp, group, name)
    await subscription.resume()
    return await _subscription_info(scope_guard, subscription)


@get(
    f"{SUBSCRIPTION_PATH}/move",
    operation_id="plan_move",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def plan_move(mp: NamedDependency[Milepost], group: Group, name: Name, to: PlaceText) -> Plan:
    """What a move would do; nothing is done."""
    return await managed_subscription(mp, group, name).plan_move(parse_place("to", to))


@post(
    f"{SUBSCRIPTION_PATH}/move",
    status_code=200,
    operation_id="move_subscription",
    opt=operation(TokenRole.OPERATE, *_DRAIN_PROBLEMS, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def move_subscription(
    mp: NamedDependency[Milepost],
    shutdown: NamedDependency[Shutdown],
    group: Group,
    name: Name,
    data: JSONBody[Move],
    timeout: ReleaseSeconds = MAX_WAIT_SECONDS,
    force: ForceRelease = False,
) -> Moved:
    """Goes on elsewhere: messages between are handled again, or never. Look at the plan first."""
    to = parse_place("to", data.to)
    return Moved(
        await shutdown.run_unless_stopping(
            managed_subscription(mp, group, name).move(to, timeout=timeout, force=force)
        )
    )


@get(
    f"{SUBSCRIPTION_PATH}/replay",
    operation_id="plan_replay",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def plan_replay(
    mp: NamedDependency[Milepost],
    group: Group,
    name: Name,
    start: PlaceText,
    end: EndText = None,
) -> Plan:
    """What a replay would do; nothing is done."""
    first, last = parse_place("start", start), parse_end_place("end", end)
    with refuse_as_invalid("end"):
        return await managed_subscription(mp, group, name).plan_replay(first, last)


@post(
    f"{SUBSCRIPTION_PATH}/replay",
    status_code=200,
    operation_id="replay_subscription",
    opt=operation(TokenRole.OPERATE, *_DRAIN_PROBLEMS, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def replay_subscription(
    mp: NamedDependency[Milepost],
    shutdown: NamedDependency[Shutdown],
    group: Group,
    name: Name,
    data: JSONBody[Replay],
    timeout: ReleaseSeconds = MAX_WAIT_SECONDS,
    force: ForceRelease = False,
) -> Replayed:
    """Repeats what was handled after `start` and up to `end`, marked as a replay; then goes on where it was."""
    first, last = parse_place("start", data.start), parse_end_place("end", data.end)
    with refuse_as_invalid("end"):
        again = await shutdown.run_unless_stopping(
            managed_subscription(mp, group, name).replay(first, last, timeout=timeout, force=force)
        )
    return Replayed(again)


@get(f"{SUBSCRIPTION_PATH}/consume", include_in_schema=False, opt=operation(None))
async def explain_consume(group: Group, name: Name) -> None:
    """Says what is wanted."""
    raise RequestRefused(
        INVALID, "Consumers connect here by WebSocket: send the headers of an upgrade", field="upgrade"
    )


HANDLERS = (
    list_subscriptions,
    create_subscription,
    show_subscription,
    subscription_statistics,
    update_subscription,
    delete_subscription,
    pause_subscription,
    resume_subscription,
    plan_move,
    move_subscription,
    plan_replay,
    replay_subscription,
    explain_consume,
)
