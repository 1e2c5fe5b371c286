"""What is answered when something fails."""

import logging
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException

from milepost.complaints import Complaints
from milepost.errors import Unavailable
from milepost.server.http.admission import query_names
from milepost.server.problems import (
    INTERNAL,
    INVALID,
    MEDIA_TYPE,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    Refused,
    answer_to,
)

logger = logging.getLogger("milepost.server")
_complaints = Complaints(logger, "the database")


def on_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer to a request that failed; what nobody foresaw is logged, and not told."""
    answer = answer_to(_translated(request, error) if isinstance(error, HTTPException) else error)
    if answer.status == INTERNAL.status:
        logger.error("%s %s failed", request.method, _operation(request), exc_info=error)
    elif isinstance(error, Unavailable):
        _complaints.make(f"does not serve: {error}")
    return Response(answer.body, status_code=answer.status, media_type=MEDIA_TYPE, headers=answer.headers)


def _translated(request: Request[Any, Any, Any], error: HTTPException) -> Exception:
    """A problem of ours for one of the framework's."""
    if isinstance(error, NotFoundException):
        return Refused(NOT_FOUND, "There is nothing at this address: /openapi.json says what there is")
    if isinstance(error, MethodNotAllowedException):
        methods = (error.headers or {}).get("allow", "").split(", ")
        allowed = ", ".join(sorted({*methods} - {"OPTIONS"}))
        return Refused(METHOD_NOT_ALLOWED, f"This address takes {allowed}", headers={"allow": allowed})
    if error.status_code >= INTERNAL.status:
        return error
    name, problem = _first(error)
    field = query_names(request.route_handler).get(name, name) if name != "request" else name
    return Refused(INVALID, f"{field}: {problem}", field=field)


def _first(error: HTTPException) -> tuple[str, str]:
    """The first field that is wrong, and what is."""
    found = error.extra if isinstance(error, ValidationException) else None
    if not isinstance(found, list) or not found:
        return "request", error.detail
    field, message = found[0].get("key", "request"), found[0].get("message", error.detail)
    return ("body", "JSON is wanted") if field == "data" else (field, message)


def _operation(request: Request[Any, Any, Any]) -> str:
    """The path as it is declared: names that somebody sent are not for a log."""
    return str(request.scope.get("path_template", "?"))
