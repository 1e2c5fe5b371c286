"""Deliveries for who asks for them, and their settlement by token."""

from typing import Annotated

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.server.access.entrance import Entrance
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.operation import operation
from milepost.server.http.parameters import Group, Name
from milepost.server.http.request import JsonRequest, receive_of
from milepost.server.http.subscriptions import ONE
from milepost.server.limits import LONGEST_PAGE, LONGEST_WAIT, USUAL_PAGE
from milepost.server.problems import GOING_AWAY, NOT_POSSIBLE, TOO_LARGE, UNKNOWN_SUBSCRIPTION
from milepost.server.stopping import Stopping
from milepost.server.wire.pulling import ClaimedDeliveries, SettledDeliveries, Settlements
from milepost.server.wire.values import checked

LONGEST_CLAIM = 86_400
"""Seconds for which a claim may hold."""


@post(
    f"/subscriptions{ONE}/pull",
    status_code=200,
    operation_id="pull",
    opt=operation(Role.CONSUME, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, GOING_AWAY, within=Within.SUBSCRIPTION),
)
async def pull(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    reach: NamedDependency[Reach],
    stopping: NamedDependency[Stopping],
    entrance: NamedDependency[Entrance],
    group: Group,
    name: Name,
    limit: Annotated[int, QueryParameter(ge=1, le=LONGEST_PAGE, description="At most so many.")] = USUAL_PAGE,
    wait: Annotated[
        float,
        QueryParameter(ge=0, le=LONGEST_WAIT, description="Seconds to wait for the first one. Defaults to 0."),
    ] = 0,
    timeout: Annotated[
        float | None,
        QueryParameter(
            gt=0, le=LONGEST_CLAIM, description="Seconds to settle them in. Defaults to the subscription's own."
        ),
    ] = None,
) -> ClaimedDeliveries:
    """Claims deliveries of a subscription with `tracking` `all`, to be settled by their tokens.

    Any number of clients may pull at once. What is not settled in time goes to others; that counts as an attempt.
    """
    work = mp.pull(f"{group}/{name}", limit=limit, wait=wait, timeout=timeout)
    refusal = entrance.refuse_in_time(request.scope["state"]["visitor"])
    pulled = await stopping.unless_begun(work, receive=receive_of(request), refusal=refusal)
    reach.check_messages(each.message for each in pulled)
    return ClaimedDeliveries.of(pulled)


@post(
    "/settle",
    status_code=200,
    operation_id="settle",
    opt=operation(Role.CONSUME, TOO_LARGE, NOT_POSSIBLE, large=True, within=Within.ITSELF),
)
async def settle(
    mp: NamedDependency[Milepost], reach: NamedDependency[Reach], data: JSONBody[Settlements]
) -> SettledDeliveries:
    """Settles deliveries that were pulled, in one transaction: each whose claim still holds.

    With a token that has a scope, their subscriptions have to be within it.
    """
    await reach.check_claims(
        token for each in (data.ack, data.retry, data.park, data.skip, data.extend) for token in each
    )
    with checked("settle"):
        return SettledDeliveries.of(await mp.settle(**msgspec.structs.asdict(data)))


HANDLERS = (pull, settle)
