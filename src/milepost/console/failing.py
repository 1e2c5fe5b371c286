"""What a person sees when something fails."""

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException

from milepost.console.admission import NOBODY, Admission, FromElsewhere, LogInFirst
from milepost.console.answer import Page, elsewhere
from milepost.console.templating import rendered
from milepost.console.visit import Visit, problem_of
from milepost.server.problems import INTERNAL, METHOD_NOT_ALLOWED, NOT_FOUND, Problem, Refused

logger = logging.getLogger("milepost.console")


class Failing:
    """Makes a page of an error."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def answer(self, request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        """The answer to a request that failed; what nobody foresaw is logged, and not told."""
        scope: Any = request.scope
        visit: Visit = scope["state"].get("visit") or self._admission.visit(scope, NOBODY, {})
        if isinstance(error, LogInFirst):
            return _response(_log_in_first(visit))
        if isinstance(error, FromElsewhere):
            return _response(Page(rendered("again.html", {"address": _address(visit)}).encode()))
        problem = problem_of(_translated(error))
        if problem.status == INTERNAL.status:
            logger.error("%s %s failed", request.method, scope.get("path_template", "?"), exc_info=error)
        again = _address(visit) if problem.transient and request.method == "GET" else None
        return _response(visit.page("problem.html", status=problem.status, problem=problem, again=again))


def _log_in_first(visit: Visit) -> Page:
    """Leads to where one logs in, and back. What follows, or was sent, is told that it is over."""
    if visit.scope["method"] != "GET" or "text/html" not in str(dict(visit.scope["headers"]).get(b"accept", b"")):
        problem = Problem(
            type="/problems/unauthenticated",
            title="You are not logged in",
            status=401,
            detail="Your session is over, or its token was revoked or has expired: log in, and do it again.",
            transient=False,
        )
        return visit.page("problem.html", status=401, problem=problem, again=None)
    return elsewhere(visit.url("login", next=_address(visit)))


def _address(visit: Visit) -> str:
    """What was asked for, as it was."""
    raw = visit.scope.get("raw_path", b"").decode("latin-1")
    query = visit.scope.get("query_string", b"").decode("latin-1")
    return f"{raw}?{query}" if query else raw


def _translated(error: Exception) -> Exception:
    """A problem of ours for one of the framework's."""
    if isinstance(error, NotFoundException):
        return Refused(NOT_FOUND, "There is no page at this address.")
    if isinstance(error, MethodNotAllowedException):
        return Refused(METHOD_NOT_ALLOWED, "This page does not take what was sent.")
    if isinstance(error, HTTPException) and error.status_code < INTERNAL.status:
        return Refused(NOT_FOUND, error.detail)
    return error


def _response(page: Page) -> Response[bytes]:
    headers = {name.decode(): value.decode("latin-1") for name, value in page.headers if name != b"content-length"}
    # The framework adds the character set itself.
    kind, _, _ = headers.pop("content-type").partition(";")
    return Response(page.body, status_code=page.status, headers=headers, media_type=kind)
