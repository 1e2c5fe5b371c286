"""Appending a message by hand."""

from litestar import get, post
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer
from milepost.console.draft import Draft
from milepost.console.visit import Visit
from milepost.errors import IdReused, InvalidMessage, WrongVersion
from milepost.log.message import Appended
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.problems import Refused

PATH = "/log/append"
FIELDS = ("stream", "type", "data", "properties", "metadata", "id", "version")


@get(PATH, opt=needs(Role.APPEND, Within.ANY_SCOPE))
async def form(visit: NamedDependency[Visit]) -> Answer:
    """Asks for a message."""
    given = {name: visit.query[name] for name in ("stream", "type") if name in visit.query}
    return visit.page("append.html", draft=Draft(**given), problem=None, field=None)


@post(PATH, status_code=200, opt=needs(Role.APPEND, Within.ITSELF))
async def append(visit: NamedDependency[Visit]) -> Answer:
    """Appends it; what is wrong is said beside what was typed."""
    draft = Draft.sent(visit)
    try:
        visit.visitor.scope.check_streams([draft.stream])
    except Refused as refused:
        return _again(visit, draft, str(refused), "stream", status=refused.kind.status)
    try:
        message = draft.message(visit.mp.codec, visit.limits)
        appended = await visit.mp.append(draft.stream, message, expected=draft.expected_version())
    except InvalidMessage as error:
        return _again(visit, draft, str(error), error.field)
    except WrongVersion as error:
        return _again(visit, draft, _words(error), "version", status=409)
    except IdReused as error:
        return _again(visit, draft, str(error), "id", status=409)
    path = visit.url("log", appended.position) if visit.may(Role.READ) else visit.url("log", "append")
    return visit.done(path, _told(appended))


def _again(visit: Visit, draft: Draft, problem: str, field: str, *, status: int = 400) -> Answer:
    part = field.partition("[")[0]
    return visit.page(
        "append.html", status=status, draft=draft, problem=problem, field=part if part in FIELDS else None
    )


def _words(error: WrongVersion) -> str:
    if error.actual == 0:
        return f"Nothing was appended: the stream {error.stream} has no message yet."
    return (
        f"Nothing was appended: the stream {error.stream} is at version {error.actual:,}. Look at what came, and "
        "decide anew."
    )


def _told(appended: Appended) -> str:
    if appended.duplicate:
        return "It was there already, with this id and content: nothing was written."
    return f"Appended to {appended.stream} as version {appended.version:,}, at position {appended.position:,}."


HANDLERS = (form, append)
