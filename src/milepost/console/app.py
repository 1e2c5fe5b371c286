"""The console as an ASGI application, and the page that a person sees when a request fails."""

import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from milepost.console.guard import NOT_LOGGED_IN, ConsoleGuard, CrossSiteNavigation, LoginRequired
from milepost.console.live import LivePages
from milepost.console.pages import NAV_ITEMS, PAGES
from milepost.console.poller import OverviewPoller
from milepost.console.request import ConsoleRequest, PageResponse, problem_of, redirect_to
from milepost.console.snapshot import SnapshotTaker
from milepost.console.templating import render
from milepost.server.http.asgi import Receive, Scope, Send
from milepost.server.mount import CONSOLE_PATH_PREFIX, ServerParts
from milepost.server.problems import INTERNAL, METHOD_NOT_ALLOWED, NOT_FOUND, Problem, RequestRefused

logger = logging.getLogger("milepost.console")


class ErrorPages:
    """The pages of errors."""

    def __init__(self, guard: ConsoleGuard) -> None:
        self._guard = guard

    def answer(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """Return the page for a request that failed. An unexpected error is logged and not shown."""
        scope: Any = request.scope
        console: ConsoleRequest = scope["state"].get("console") or self._guard.console_request(
            scope, NOT_LOGGED_IN, {}
        )
        if isinstance(error, LoginRequired):
            return _litestar_response(_redirect_to_login(console))
        if isinstance(error, CrossSiteNavigation):
            return _litestar_response(
                PageResponse(render("again.html", {"address": _requested_address(console)}).encode())
            )
        problem = problem_of(_console_error(error))
        if problem.status == INTERNAL.status:
            logger.error("%s %s failed", request.method, scope.get("path_template", "?"), exc_info=error)
        again = _requested_address(console) if problem.transient and request.method == "GET" else None
        return _litestar_response(
            console.page("problem.html", status=problem.status, problem=problem, again=again)
        )


def _redirect_to_login(console: ConsoleRequest) -> PageResponse:
    """Redirect to the login page, and back from it. A script or a form is told that the session is over."""
    if console.scope["method"] != "GET" or "text/html" not in str(
        dict(console.scope["headers"]).get(b"accept", b"")
    ):
        problem = Problem(
            type="/problems/unauthenticated",
            title="You are not logged in",
            status=401,
            detail="Your session is over, or its token was revoked or has expired: log in, and do it again.",
            transient=False,
        )
        return console.page("problem.html", status=401, problem=problem, again=None)
    return redirect_to(console.url("login", next=_requested_address(console)))


def _requested_address(console: ConsoleRequest) -> str:
    """Return the path and query of a request as they were sent."""
    raw = console.scope.get("raw_path", b"").decode("latin-1")
    query = console.scope.get("query_string", b"").decode("latin-1")
    return f"{raw}?{query}" if query else raw


def _console_error(error: Exception) -> Exception:
    """Return an error of Milepost's for one of the framework's."""
    if isinstance(error, NotFoundException):
        return RequestRefused(NOT_FOUND, "There is no page at this address.")
    if isinstance(error, MethodNotAllowedException):
        return RequestRefused(METHOD_NOT_ALLOWED, "This page does not take what was sent.")
    if isinstance(error, HTTPException) and error.status_code < INTERNAL.status:
        return RequestRefused(NOT_FOUND, error.detail)
    return error


def _litestar_response(page: PageResponse) -> Response[bytes]:
    headers = {name.decode(): value.decode("latin-1") for name, value in page.headers if name != b"content-length"}
    # The framework adds the character set itself.
    kind, _, _ = headers.pop("content-type").partition(";")
    return Response(page.body, status_code=page.status, headers=headers, media_type=kind)


class Console:
    """An ASGI application for the paths that begin with `/console`."""

    def __init__(self, served: ServerParts) -> None:
        self.poller = OverviewPoller(SnapshotTaker(served.mp).take)
        guard = ConsoleGuard(served, LivePages(self.poller, served.shutdown), NAV_ITEMS)
        error_pages = ErrorPages(guard)

        def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
            return error_pages.answer(request, error)

        inner: Any = Litestar(
            [Router(CONSOLE_PATH_PREFIX, route_handlers=[handler for page in PAGES for handler in page.HANDLERS])],
            dependencies={"console": Provide(_console_request, sync_to_thread=False)},
            exception_handlers={Exception: on_error},
            guards=[guard.admit],
            logging_config=None,
            openapi_config=None,
            # The gate looks at that, while the body arrives.
            request_max_body_size=None,
        )
        self._inner = inner

    def running(self) -> AbstractAsyncContextManager[None]:
        """Poll now and then while the server runs, so that charts have a past when the first page is opened."""
        return self.poller.running()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._inner(scope, receive, send)


def _console_request(request: Request[Any, Any, Any]) -> ConsoleRequest:
    """Return what the guard made of the request."""
    console: ConsoleRequest = request.scope["state"]["console"]
    return console
