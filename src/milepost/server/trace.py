"""Trace messages over HTTP: where each is for each subscription."""

from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from milepost.engine.operate.trace.results import Trace
from milepost.engine.operate.trace.tracer import DEFAULT_TRACED_MESSAGES, MAX_TRACED_MESSAGES
from milepost.names import MAX_POSITION_NUMBER
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.handlers import TraceTarget, operation
from milepost.server.problems import NOT_POSSIBLE, TOO_LARGE, UNKNOWN_SUBSCRIPTION


@get(
    "/trace/{target:str}",
    operation_id="trace",
    opt=operation(TokenRole.READ, UNKNOWN_SUBSCRIPTION, TOO_LARGE, NOT_POSSIBLE, scope_rule=ScopeRule.ITSELF),
)
async def trace_messages(
    scope_guard: NamedDependency[ScopeGuard],
    target: TraceTarget,
    group: Annotated[str | None, QueryParameter(description="Only the subscriptions of this group.")] = None,
    subscription: Annotated[
        str | None,
        QueryParameter(description="Only those of this name, or the one of this address, `group/name`."),
    ] = None,
    limit: Annotated[
        int, QueryParameter(ge=1, le=MAX_TRACED_MESSAGES, description="At most so many messages, the newest ones.")
    ] = DEFAULT_TRACED_MESSAGES,
    before_version: Annotated[
        int | None,
        QueryParameter(
            ge=1,
            le=MAX_POSITION_NUMBER,
            description="Only older versions than this: `before_version` of the page before.",
        ),
    ] = None,
) -> Trace:
    """Where each message of a stream, or the one of an id, is for each subscription, and why.

    With a token that has a scope, a stream has to be of its categories. Messages and subscriptions outside of it
    are left out.
    """
    return await scope_guard.trace(
        target, group=group, subscription=subscription, limit=limit, before_version=before_version
    )


HANDLERS = (trace_messages,)
