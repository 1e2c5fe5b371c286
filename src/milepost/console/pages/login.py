"""The login page, and logging out."""

from litestar import get, post
from litestar.di import NamedDependency

from milepost.console.guard import needs
from milepost.console.request import ConsoleRequest, ConsoleResponse, redirect_to
from milepost.console.session import (
    ENDED_SESSION_SECONDS,
    SESSION_COOKIE,
    SESSION_SECONDS,
    clear_cookie,
    seal_session,
    set_cookie,
)
from milepost.server.mount import CONSOLE_PATH_PREFIX
from milepost.server.problems import TOO_MANY_ATTEMPTS, RequestRefused

PATH = "/login"


@get(PATH, opt=needs(None))
async def form(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Show the form that asks for a token."""
    if not console.served.authenticator.asks_for_tokens or console.principal.token is not None:
        return redirect_to(console.url())
    return console.page("login.html", next=console.query.get("next", ""), problem=None)


@post(PATH, status_code=200, opt=needs(None))
async def log_in(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """Open a session for a token in force."""
    secret, goal = console.sent("token").strip(), console.sent("next")
    try:
        principal = await console.served.authenticator.authenticate_secret(console.scope, secret or None)
    except RequestRefused as refused:
        words = (
            str(refused) if refused.kind is TOO_MANY_ATTEMPTS else "This is no token in force: ask for another."
        )
        return console.page("login.html", status=refused.kind.status, next=goal, problem=words)
    if principal.token is None:
        return redirect_to(console.url())
    sealed = seal_session(principal.token, secret)
    cookie = set_cookie(
        console.scope, SESSION_COOKIE, sealed, path=f"{console.root}{CONSOLE_PATH_PREFIX}", seconds=SESSION_SECONDS
    )
    return redirect_to(_console_path(console, goal), headers=[cookie])


@post("/logout", status_code=200, opt=needs(None))
async def log_out(console: NamedDependency[ConsoleRequest]) -> ConsoleResponse:
    """End the session, on every server: a copy of its cookie opens nothing any more."""
    token, session = console.principal.token, console.principal.session
    if token is not None and session is not None:
        await console.served.token_cache.end_session(token, session, ENDED_SESSION_SECONDS)
    return redirect_to(
        console.url("login"),
        headers=[clear_cookie(console.scope, SESSION_COOKIE, path=f"{console.root}{CONSOLE_PATH_PREFIX}")],
    )


def _console_path(console: ConsoleRequest, path: str) -> str:
    """Return the page to go on at: one of this console, never of another site."""
    base = console.url()
    inside = path == base or path.startswith((f"{base}/", f"{base}?"))
    return path if inside and path.isascii() and path.isprintable() and "\\" not in path else base


HANDLERS = (form, log_in, log_out)
