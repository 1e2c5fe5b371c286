"""Messages that need attention of their own, and how far a subscription is."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.dispatch import State
from milepost.engine.choosing import meant
from milepost.engine.deliveries import DeliveryInfo
from milepost.engine.stream_progress import StreamProgress
from milepost.errors import InvalidMessage
from milepost.log.message import Appended
from milepost.progress.deliveries import Decided, Decision
from milepost.server.access.entrance import Entrance
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.operation import operation
from milepost.server.http.parameters import LAST, After, Group, Limit, Name, Stream
from milepost.server.http.request import JsonRequest, receive_of
from milepost.server.http.subscriptions import ONE, managed
from milepost.server.limits import LONGEST_WAIT, PAGE_BYTES, USUAL_PAGE
from milepost.server.problems import (
    GOING_AWAY,
    NOT_HANDLED,
    NOT_HANDLED_YET,
    NOT_POSSIBLE,
    TOO_LARGE,
    UNKNOWN_SUBSCRIPTION,
)
from milepost.server.stopping import Stopping
from milepost.server.wire.delivery import MOST_DECIDED, Count, DeliveriesToDecide, Delivery, DeliveryPage
from milepost.server.wire.values import checked

StateNames = Annotated[list[State] | None, QueryParameter(name="state", description="Only those in these states.")]
Key = Annotated[str | None, QueryParameter(description="Only what is kept in order by this key.")]
Reason = Annotated[str | None, QueryParameter(description="Only those whose reason has this text in it.")]
UpTo = Annotated[int | None, QueryParameter(ge=0, le=LAST, description="Only positions up to this one.")]


@get(
    f"{ONE}/deliveries",
    operation_id="list_deliveries",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def list_(
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    group: Group,
    name: Name,
    states: StateNames = None,
    key: Key = None,
    reason: Reason = None,
    after: After = 0,
    up_to: UpTo = None,
    limit: Limit = USUAL_PAGE,
) -> DeliveryPage:
    """The messages that need attention of their own, in order of position."""
    pages = managed(mp, group, name).delivery_pages(
        state=states, key=key, reason=reason, after=after, up_to=up_to, limit=limit + 1
    )
    found, more = await _gathered(pages, limit)
    shown = [each for each in found if each.message is None or reach.scope.has_stream(each.message.stream)]
    return DeliveryPage(list(map(Delivery.of, shown)), found[-1].position if found else after, more)


async def _gathered(
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
    f"{ONE}/deliveries/count",
    operation_id="count_deliveries",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def count(
    mp: NamedDependency[Milepost],
    group: Group,
    name: Name,
    states: StateNames = None,
    key: Key = None,
    reason: Reason = None,
    after: After = 0,
    up_to: UpTo = None,
) -> Count:
    """How many of them there are."""
    return Count(
        await managed(mp, group, name).count_deliveries(
            state=states, key=key, reason=reason, after=after, up_to=up_to
        )
    )


@post(
    f"{ONE}/deliveries/retry",
    status_code=200,
    operation_id="retry_deliveries",
    opt=operation(Role.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def retry(
    mp: NamedDependency[Milepost], group: Group, name: Name, data: JSONBody[DeliveriesToDecide]
) -> Decided:
    """Has parked or retrying messages tried now, and counted anew.

    One request decides about at most 10,000: repeat it with `after` while the answer has a `next`.
    """
    return await managed(mp, group, name).retry(**_meant(Decision.RETRY, data))


@post(
    f"{ONE}/deliveries/skip",
    status_code=200,
    operation_id="skip_deliveries",
    opt=operation(Role.OPERATE, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def skip(
    mp: NamedDependency[Milepost], group: Group, name: Name, data: JSONBody[DeliveriesToDecide]
) -> Decided:
    """Passes messages over for good; what waits behind them goes on."""
    return await managed(mp, group, name).skip(**_meant(Decision.SKIP, data))


def _meant(decision: Decision, data: DeliveriesToDecide) -> dict[str, Any]:
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
    with checked("state"):
        meant(decision, **choice)
    return {**choice, "limit": MOST_DECIDED if data.limit is None else data.limit}


@get(
    f"{ONE}/progress/{{stream:str}}",
    operation_id="progress",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, TOO_LARGE, NOT_POSSIBLE, within=Within.SUBSCRIPTION),
)
async def progress(mp: NamedDependency[Milepost], group: Group, name: Name, stream: Stream) -> StreamProgress:
    """How far it is with one stream: the version handled, the version known, lagging or not."""
    return await managed(mp, group, name).progress(stream)


@get(
    f"{ONE}/caught-up",
    status_code=204,
    operation_id="caught_up",
    opt=operation(
        Role.READ,
        UNKNOWN_SUBSCRIPTION,
        NOT_HANDLED,
        NOT_HANDLED_YET,
        TOO_LARGE,
        NOT_POSSIBLE,
        GOING_AWAY,
        within=Within.SUBSCRIPTION,
    ),
)
async def caught_up(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    stopping: NamedDependency[Stopping],
    entrance: NamedDependency[Entrance],
    group: Group,
    name: Name,
    position: Annotated[
        int | None, QueryParameter(ge=1, le=LAST, description="The position of a message.")
    ] = None,
    stream: Annotated[
        str | None, QueryParameter(description="Instead of a position: the stream of an append.")
    ] = None,
    version: Annotated[
        int | None,
        QueryParameter(ge=1, le=LAST, description="With a stream: the version that the append came to."),
    ] = None,
    messages: Annotated[
        int, QueryParameter(ge=1, le=10_000, description="With a stream: how many messages the append had.")
    ] = 1,
    timeout: Annotated[
        float,
        QueryParameter(ge=0, le=LONGEST_WAIT, description="How many seconds to wait for that. Defaults to 2."),
    ] = 2,
) -> None:
    """Answers when an append has been handled: done, skipped, or not for this subscription."""
    written = _written(position, stream, version, messages)
    reach.scope.check_streams([] if stream is None else [stream])
    work = managed(mp, group, name).caught_up(written, timeout=timeout)
    refusal = entrance.refuse_in_time(request.scope["state"]["visitor"])
    await stopping.unless_begun(work, receive=receive_of(request), refusal=refusal)


def _written(position: int | None, stream: str | None, version: int | None, messages: int) -> int | Appended:
    if position is not None and stream is None and version is None:
        return position
    if position is None and stream is not None and version is not None:
        return Appended(stream, version, 0, False, min(messages, version))
    raise InvalidMessage("position", "either a position is wanted, or a stream and a version of it")


HANDLERS = (
    list_,
    count,
    retry,
    skip,
    progress,
    caught_up,
)
