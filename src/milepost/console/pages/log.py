"""The log: messages by stream, category, type and filter, the newest first; and as they come."""

from collections.abc import Mapping

from litestar import get
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer, elsewhere
from milepost.console.choice import Choice
from milepost.console.entry import Entry
from milepost.console.explained import Checked
from milepost.console.numbers import position_of
from milepost.console.sample import sample_of
from milepost.console.stretch import Search, Stretch
from milepost.console.tail import Tail
from milepost.console.target import named
from milepost.console.visit import Visit
from milepost.errors import FilterError, InvalidMessage
from milepost.server.access.reach import Within
from milepost.server.access.role import Role

ENTRY = Entry("Log", "log")


@get("/log", opt=needs(Role.READ, Within.ITSELF))
async def log(visit: NamedDependency[Visit]) -> Answer:
    """Messages."""
    query = visit.query
    choice = Choice.of(query, visit.visitor.scope)
    oldest_first = query.get("order") == "oldest"
    stretch, problem = None, None
    try:
        stretch = await _stretch(visit, choice, oldest_first)
    except FilterError:
        problem = "The filter cannot be used."
    except InvalidMessage as error:
        problem = str(error)
    return visit.page(
        "log.html",
        status=200 if stretch else 400,
        choice=choice,
        checked=Checked.of(choice.where),
        stretch=stretch,
        problem=problem,
        oldest_first=oldest_first,
        going_on=_forwards(query),
        following=query.get("follow") == "1",
    )


async def _stretch(visit: Visit, choice: Choice, oldest_first: bool) -> Stretch:
    """Found in the direction in which one goes on, shown in the order that was asked for."""
    search = Search(visit.mp, choice)
    before, after = position_of(visit.query, "before"), position_of(visit.query, "after")
    forwards = _forwards(visit.query)
    stretch = await (search.forwards(after or 0) if forwards else search.backwards(before))
    if forwards != oldest_first:
        stretch.messages.reverse()
    return stretch


def _forwards(query: Mapping[str, str]) -> bool:
    """Whether one goes on towards the end of the log."""
    return "after" in query or (query.get("order") == "oldest" and "before" not in query)


@get("/log/check", opt=needs(Role.READ, Within.ITSELF))
async def check(visit: NamedDependency[Visit]) -> Answer:
    """What there is to say about a filter: asked for while one types."""
    choice = Choice.of(visit.query, visit.visitor.scope)
    checked = Checked.of(choice.where)
    sample, problem = None, None
    try:
        sample = None if checked.filter is None else await sample_of(visit.mp, choice, checked.filter)
    except InvalidMessage as error:
        problem = str(error)
    narrowed = not choice.unfiltered.everything
    return visit.fragment("parts/check.html", checked=checked, sample=sample, problem=problem, narrowed=narrowed)


@get("/log/tail", opt=needs(Role.READ, Within.ITSELF))
async def tail(visit: NamedDependency[Visit]) -> Answer:
    """Messages as they come, as server-sent events."""
    choice = Choice.of(visit.query, visit.visitor.scope)
    # What is wrong is told before the answer begins.
    choice.query(backwards=False)
    return Tail(visit, choice, position_of(visit.query, "after"))


@get("/log/find", opt=needs(Role.READ, Within.ITSELF))
async def find(visit: NamedDependency[Visit]) -> Answer:
    """Leads to a message by its position or its id."""
    try:
        position = await named(visit.reach, visit.query.get("message", ""))
    except InvalidMessage as error:
        return visit.done(visit.url("log"), str(error), "problem")
    if position is None:
        return visit.done(visit.url("log"), "No message has this id.", "problem")
    return elsewhere(visit.url("log", position))


HANDLERS = (log, check, tail, find)
