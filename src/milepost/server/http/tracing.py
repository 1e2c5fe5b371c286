"""Where messages are."""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from milepost.engine.trace.traced import Trace
from milepost.engine.trace.tracer import LIMIT, MOST
from milepost.server.access.reach import Reach, Within
from milepost.server.access.role import Role
from milepost.server.http.operation import operation
from milepost.server.http.parameters import LAST, Target
from milepost.server.problems import NOT_POSSIBLE, TOO_LARGE, UNKNOWN_SUBSCRIPTION


@get(
    "/trace/{target:str}",
    operation_id="trace",
    opt=operation(Role.READ, UNKNOWN_SUBSCRIPTION, TOO_LARGE, NOT_POSSIBLE, within=Within.ITSELF),
)
async def trace(
    reach: NamedDependency[Reach],
    target: Target,
    group: Annotated[str | None, QueryParameter(description="Only the subscriptions of this group.")] = None,
    subscription: Annotated[
        str | None,
        QueryParameter(description="Only those of this name, or the one of this address, `group/name`."),
    ] = None,
    limit: Annotated[
        int, QueryParameter(ge=1, le=MOST, description="At most so many messages, the newest ones.")
    ] = LIMIT,
    before_version: Annotated[
        int | None,
        QueryParameter(
            ge=1, le=LAST, description="Only older versions than this: `before_version` of the page before."
        ),
    ] = None,
) -> Trace:
    """Where each message of a stream, or the one of an id, is for each subscription, and why.

    With a token that has a scope, a stream has to be of its categories. Messages and subscriptions outside of it
    are left out.
    """
    return await reach.trace(
        target, group=group, subscription=subscription, limit=limit, before_version=before_version
    )


HANDLERS = (trace,)
