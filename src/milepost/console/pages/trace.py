"""Where is my message: what became of each message of a stream, for every subscription."""

from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.entry import Entry
from milepost.console.visit import Visit, problem_of
from milepost.engine.trace.traced import Trace, Traced
from milepost.errors import InvalidMessage
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.problems import INTERNAL

ENTRY = Entry("Where is my message", "trace")
SHOWN = 20
"""Messages on a page, the newest of the stream."""


@get("/trace", opt=needs(Role.READ, Within.ITSELF))
async def trace(visit: NamedDependency[Visit]) -> Answer:
    """A stream or an id, and where each message is."""
    target = visit.query.get("q", "").strip()
    subscription = visit.query.get("subscription", "").strip()
    found, problem = None, None
    if target:
        try:
            found = await _traced(visit, target, subscription)
        except Exception as error:
            told = problem_of(error)
            if told.status == INTERNAL.status:
                raise
            problem = told.detail
    return visit.page(
        "trace.html", target=target, subscription=subscription, found=found, problem=problem, told=_told
    )


async def _traced(visit: Visit, target: str, subscription: str) -> Trace:
    before = visit.query.get("before_version")
    if before is not None and not (before.isascii() and before.isdigit()):
        raise InvalidMessage("before_version", f"a version is wanted, not {before[:40]!r}")
    return await visit.reach.trace(
        target,
        group=None,
        subscription=subscription or None,
        limit=SHOWN,
        before_version=None if before is None else int(before),
    )


def _told(traced: Traced) -> str:
    """What `milepost trace` says, without the state, which stands before it."""
    return str(traced).removeprefix(traced.state).lstrip(":, ")


HANDLERS = (trace,)
