"""The page "Where is my message": the state of each message of a stream for every subscription."""

from litestar import get
from litestar.di import NamedDependency

from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, NavItem, expected_problem
from milepost.console.search import parse_position
from milepost.engine.operate.trace.results import Trace, Traced
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule

NAV_ITEM = NavItem("Where is my message", "trace")
TRACE_PAGE_MESSAGES = 20
"""Messages on a page, the newest of the stream."""


@get("/trace", opt=needs(TokenRole.READ, ScopeRule.ITSELF))
async def trace(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the state of each message of a stream, or of the message with an id."""
    target = console.query.get("q", "").strip()
    subscription = console.query.get("subscription", "").strip()
    found, problem = None, None
    if target:
        try:
            found = await _load_trace(console, target, subscription)
        except Exception as error:
            problem = expected_problem(error).detail
    return console.page(
        "trace.html", target=target, subscription=subscription, found=found, problem=problem, told=_fate_in_words
    )


async def _load_trace(console: ConsoleRequest, target: str, subscription: str) -> Trace:
    before = console.query.get("before_version")
    return await console.scope_guard.trace(
        target,
        group=None,
        subscription=subscription or None,
        limit=TRACE_PAGE_MESSAGES,
        before_version=None if before is None else parse_position("before_version", before, what="version"),
    )


def _fate_in_words(traced: Traced) -> str:
    """Return what `milepost trace` prints, without the state, which has a column of its own."""
    return str(traced).removeprefix(traced.state).lstrip(":, ")


HANDLERS = (trace,)
