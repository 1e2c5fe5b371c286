"""Pull deliveries over HTTP, and settle them by token."""

from typing import Annotated

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody, QueryParameter

from milepost.app import Milepost
from milepost.server.access.authentication import Authenticator
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.handlers import Group, Name, operation
from milepost.server.http.json_body import JsonRequest, request_receive
from milepost.server.limits import DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS, MAX_WAIT_SECONDS
from milepost.server.problems import GOING_AWAY, NOT_POSSIBLE, TOO_LARGE, UNKNOWN_SUBSCRIPTION
from milepost.server.shutdown import Shutdown
from milepost.server.subscriptions import SUBSCRIPTION_PATH
from milepost.wire.deliveries import ClaimedDeliveries, SettledDeliveries, Settlements
from milepost.wire.values import refuse_as_invalid

MAX_CLAIM_SECONDS = 86_400
"""Seconds for which a claim may hold."""


@post(
    f"/subscriptions{SUBSCRIPTION_PATH}/pull",
    status_code=200,
    operation_id="pull",
    opt=operation(
        TokenRole.CONSUME, UNKNOWN_SUBSCRIPTION, NOT_POSSIBLE, GOING_AWAY, scope_rule=ScopeRule.SUBSCRIPTION
    ),
)
async def pull_deliveries(
    request: JsonRequest,
    mp: NamedDependency[Milepost],
    scope_guard: NamedDependency[ScopeGuard],
    shutdown: NamedDependency[Shutdown],
    authenticator: NamedDependency[Authenticator],
    group: Group,
    name: Name,
    limit: Annotated[
        int, QueryParameter(ge=1, le=MAX_PAGE_ITEMS, description="At most so many.")
    ] = DEFAULT_PAGE_ITEMS,
    wait: Annotated[
        float,
        QueryParameter(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for the first one. Defaults to 0."),
    ] = 0,
    timeout: Annotated[
        float | None,
        QueryParameter(
            gt=0,
            le=MAX_CLAIM_SECONDS,
            description="Seconds to settle them in. Defaults to the subscription's own.",
        ),
    ] = None,
) -> ClaimedDeliveries:
    """Claims deliveries of a subscription with `tracking` `all`, to be settled by their tokens.

    Any number of clients may pull at once. What is not settled in time goes to others; that counts as an attempt.
    """
    work = mp.pull(f"{group}/{name}", limit=limit, wait=wait, timeout=timeout)
    refusal = authenticator.refuse_when_revoked(request.scope["state"]["principal"])
    pulled = await shutdown.run_unless_stopping(work, receive=request_receive(request), refusal=refusal)
    scope_guard.check_messages(each.message for each in pulled)
    return ClaimedDeliveries.of(pulled)


@post(
    "/settle",
    status_code=200,
    operation_id="settle",
    opt=operation(TokenRole.CONSUME, TOO_LARGE, NOT_POSSIBLE, large=True, scope_rule=ScopeRule.ITSELF),
)
async def settle_deliveries(
    mp: NamedDependency[Milepost], scope_guard: NamedDependency[ScopeGuard], data: JSONBody[Settlements]
) -> SettledDeliveries:
    """Settles deliveries that were pulled, in one transaction: each whose claim still holds.

    With a token that has a scope, their subscriptions have to be within it.
    """
    await scope_guard.check_claims(
        token for each in (data.ack, data.retry, data.park, data.skip, data.extend) for token in each
    )
    with refuse_as_invalid("settle"):
        return SettledDeliveries.of(await mp.settle(**msgspec.structs.asdict(data)))


HANDLERS = (pull_deliveries, settle_deliveries)
