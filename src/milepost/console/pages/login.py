"""Logging in with a token, and out."""

from litestar import get, post
from litestar.di import NamedDependency

from milepost.console.admission import needs
from milepost.console.answer import Answer, elsewhere
from milepost.console.cookies import SESSION, forgotten, kept
from milepost.console.session import ENDED_KEPT_SECONDS, LASTS, seal
from milepost.console.visit import Visit
from milepost.server.beside import PREFIX
from milepost.server.problems import TOO_MANY_ATTEMPTS, Refused

PATH = "/login"


@get(PATH, opt=needs(None))
async def form(visit: NamedDependency[Visit]) -> Answer:
    """Asks for a token."""
    if not visit.served.entrance.asks or visit.visitor.token is not None:
        return elsewhere(visit.url())
    return visit.page("login.html", next=visit.query.get("next", ""), problem=None)


@post(PATH, status_code=200, opt=needs(None))
async def log_in(visit: NamedDependency[Visit]) -> Answer:
    """Opens a session for whoever has a token in force."""
    secret, goal = visit.sent("token").strip(), visit.sent("next")
    try:
        visitor = await visit.served.entrance.known(visit.scope, secret or None)
    except Refused as refused:
        words = (
            str(refused) if refused.kind is TOO_MANY_ATTEMPTS else "This is no token in force: ask for another."
        )
        return visit.page("login.html", status=refused.kind.status, next=goal, problem=words)
    if visitor.token is None:
        return elsewhere(visit.url())
    sealed = seal(visitor.token, secret)
    cookie = kept(visit.scope, SESSION, sealed, path=f"{visit.root}{PREFIX}", seconds=LASTS)
    return elsewhere(_within(visit, goal), headers=[cookie])


@post("/logout", status_code=200, opt=needs(None))
async def log_out(visit: NamedDependency[Visit]) -> Answer:
    """End the session, on every server: a copy of its cookie opens nothing any more."""
    token, session = visit.visitor.token, visit.visitor.session
    if token is not None and session is not None:
        await visit.served.doorkeeper.end_session(token, session, ENDED_KEPT_SECONDS)
    return elsewhere(visit.url("login"), headers=[forgotten(visit.scope, SESSION, path=f"{visit.root}{PREFIX}")])


def _within(visit: Visit, path: str) -> str:
    """Where to go on: a page of this console, never anywhere else."""
    base = visit.url()
    inside = path == base or path.startswith((f"{base}/", f"{base}?"))
    return path if inside and path.isascii() and path.isprintable() and "\\" not in path else base


HANDLERS = (form, log_in, log_out)
