"""Deliveries of a subscription over HTTP: list, count, retry, skip; progress, and waiting until it caught up."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.dispatch import State
from milepost.engine.operate.caught_up import StreamProgress
from milepost.engine.operate.deliveries import DeliveryInfo, choice_to_decide
from milepost.errors import InvalidMessage
from milepost.log.message import Appended
from milepost.names import MAX_POSITION_NUMBER
from milepost.progress.deliveries import Decided, Decision
from milepost.server.access.authentication import Authenticator
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.handlers import After, Group, Limit, Name, Stream, operation
from milepost.server.http.json_body import JsonRequest, request_receive
from milepost.server.limits import DEFAULT_PAGE_ITEMS, MAX_WAIT_SECONDS, PAGE_BYTES
from milepost.server.problems import (
    GOING_AWAY,
    NOT_HANDLED,
    NOT_HANDLED_YET,
    NOT_POSSIBLE,
    TOO_LARGE,
    UNKNOWN_SUBSCRIPTION,
)
from milepost.server.shutdown import Shutdown
from milepost.server.subscriptions import SUBSCRIPTION_PATH, managed_subscription
from milepost.wire.deliveries import (
    MAX_DECIDED_DELIVERIES,
    Count,
    DeliveriesToDecide,
    DeliveryPage,
    ListedDelivery,
)
from milepost.wire.values import refuse_as_invalid

DeliveryStates = Annotated[
    list[State] | None, QueryParameter(name="state", description="Only those in these states.")
]
DeliveryKey = Annotated[str | None, QueryParameter(description="Only what is kept in order by this key.")]
DeliveryReason = Annotated[str | None, QueryParameter(description="Only those whose reason has this text in it.")]
UpToPosition = Annotated[
    int | None, QueryParameter(ge=0, le=MAX_POSITION_NUMBER, description="Only positions up to this one.")
]


@get(
    f"{SUBSCRIPTION_PATH}/deliveries",
    operation_id="list_deliveries",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def list_deliveries(
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    group: Group,
    name: Name,
    states: DeliveryStates = None,
    key: DeliveryKey = None,
    reason: DeliveryReason = None,
    after: After = 0,
    up_to: UpToPosition = None,
    limit: Limit = DEFAULT_PAGE_ITEMS,
) -> DeliveryPage:
    """The messages that need attention of their own, in order of position."""
    pages = managed_subscription(mp, group, name).delivery_pages(
        state=states, key=key, reason=reason, after=after, up_to=up_to, limit=limit + 1
    )
    found, more = await _first_deliveries(pages, limit)
    shown = [each for each in found if each.message is None or scope_guard.scope.has_stream(each.message.stream)]
    return DeliveryPage(list(map(ListedDelivery.of, shown)), found[-1].position if found else after, more)


async def _first_deliveries(
    pages: AsyncGenerator[list[DeliveryInfo], None], limit: int
) -> tuple[list[DeliveryInfo], bool]:
    """The first deliveries, and whether there are more."""
    found: list[DeliveryInfo] = []
    size = 0
    async with aclosing(pages):
        async for page in pages:
            for delivery in page:
                if len(found) == limit or (found and size + delivery.size > PAGE_BYTES):
                    return found, True
                found.append(delivery)
                size += delivery.size
    return found, False


@get(
    f"{SUBSCRIPTION_PATH}/deliveries/count",
    operation_id="count_deliveries",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def count_deliveries(
    mp: NamedDependency[Milepost],
    group: Group,
    name: Name,
    states: DeliveryStates = None,
    key: DeliveryKey = None,
    reason: DeliveryReason = None,
    after: After = 0,
    up_to: UpToPosition = None,
) -> Count:
    """How many of them there are."""
    return Count(
        await managed_subscription(mp, group, name).count_deliveries(
            state=states, key=key, reason=reason, after=after, up_to=up_to
        )
    )


@post(
    f"{SUBSCRIPTION_PATH}/deliveries/retry",
    status_code=200,
    operation_id="retry_deliveries",
    opt=operation(TokenRole.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def retry_deliveries(
    mp: NamedDependency[Milepost], group: Group, name: Name, data: JSONBody[DeliveriesToDecide]
) -> Decided:
    """Has parked or retrying messages tried now, and counted anew.

    One request decides about at most 10,000: repeat it with `after` while the answer has a `next`.
    """
    return await managed_subscription(mp, group, name).retry(**_decision_arguments(Decision.RETRY, data))


@post(
    f"{SUBSCRIPTION_PATH}/deliveries/skip",
    status_code=200,
    operation_id="skip_deliveries",
    opt=operation(TokenRole.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION),
)
async def skip_deliveries(
    mp: NamedDependency[Milepost], group: Group, name: Name, data: JSONBody[DeliveriesToDecide]
) -> Decided:
    """Passes messages over for good; what waits behind them goes on."""
    return await managed_subscription(mp, group, name).skip(**_decision_arguments(Decision.SKIP, data))


def _decision_arguments(decision: Decision, data: DeliveriesToDecide) -> dict[str, Any]:
    """What the library is told; what it would refuse is refused here, as a fault of the request."""
    data.check()
    choice: dict[str, Any] = {
        "positions": data.positions,
        "all": data.all,
        "after": data.after,
        "up_to": data.up_to,
        "state": data.state,
        "key": data.key,
        "reason": data.reason,
    }
    with refuse_as_invalid("state"):
        choice_to_decide(decision, **choice)
    return {**choice, "limit": MAX_DECIDED_DELIVERIES if data.limit is None else data.limit}


@get(
    f"{SUBSCRIPTION_PATH}/progress/{{stream:str}}",
    operation_id="progress",
    opt=operation(
        TokenRole.READ, UNKNOWN_SUBSCRIPTION, TOO_LARGE, NOT_POSSIBLE, scope_rule=ScopeRule.SUBSCRIPTION
    ),
)
async def progress(mp: NamedDependency[Milepost], group: Group, name: Name, stream: Stream) -> StreamProgress:
    """How far it is with one stream: the version handled, the version known, lagging or not."""
    return await managed_subscription(mp, group, name).progress(stream)


@get(
    f"{SUBSCRIPTION_PATH}/caught-up",
    status_code=204,
    operation_id="caught_up",
    opt=operation(
        TokenRole.READ,
        UNKNOWN_SUBSCRIPTION,
        NOT_HANDLED,
        NOT_HANDLED_YET,
        TOO_LARGE,
        NOT_POSSIBLE,
        GOING_AWAY,
        scope_rule=ScopeRule.SUBSCRIPTION,
    ),
)
async def caught_up(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    shutdown: NamedDependency[Shutdown],
    authenticator: NamedDependency[Authenticator],
    group: Group,
    name: Name,
    position: Annotated[
        int | None, QueryParameter(ge=1, le=MAX_POSITION_NUMBER, description="The position of a message.")
    ] = None,
    stream: Annotated[
        str | None, QueryParameter(description="Instead of a position: the stream of an append.")
    ] = None,
    version: Annotated[
        int | None,
        QueryParameter(
            ge=1, le=MAX_POSITION_NUMBER, description="With a stream: the version that the append came to."
        ),
    ] = None,
    messages: Annotated[
        int, QueryParameter(ge=1, le=10_000, description="With a stream: how many messages the append had.")
    ] = 1,
    timeout: Annotated[
        float,
        QueryParameter(ge=0, le=MAX_WAIT_SECONDS, description="How many seconds to wait for that. Defaults to 2."),
    ] = 2,
) -> None:
    """Answers when an append has been handled: done, skipped, or not for this subscription."""
    written = _append_waited_for(position, stream, version, messages)
    scope_guard.scope.check_streams([] if stream is None else [stream])
    work = managed_subscription(mp, group, name).caught_up(written, timeout=timeout)
    refusal = authenticator.refuse_when_revoked(request.scope["state"]["principal"])
    await shutdown.run_unless_stopping(work, receive=request_receive(request), refusal=refusal)


def _append_waited_for(
    position: int | None, stream: str | None, version: int | None, messages: int
) -> int | Appended:
    if position is not None and stream is None and version is None:
        return position
    if position is None and stream is not None and version is not None:
        return Appended(stream, version, 0, False, min(messages, version))
    raise InvalidMessage("position", "either a position is wanted, or a stream and a version of it")


HANDLERS = (
    list_deliveries,
    count_deliveries,
    retry_deliveries,
    skip_deliveries,
    progress,
    caught_up,
)
