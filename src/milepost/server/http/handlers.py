"""What all HTTP handlers share: parameters, options, the check before a handler, the answer to an error."""

import logging
from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Annotated, Any, get_args

from litestar import Request, Response
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.params import PathParameter, QueryParameter
from litestar.routes import HTTPRoute

from milepost.errors import Unavailable
from milepost.filter.filter import MAX_BYTES
from milepost.log.query import MAX_CHOICES
from milepost.names import MAX_POSITION_NUMBER, suggestion
from milepost.server.access.authentication import Authenticator
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeGuard, ScopeRule
from milepost.server.http.asgi import decode_path_names
from milepost.server.http.body import BODY_SCOPE_KEY
from milepost.server.limits import DEFAULT_PAGE_ITEMS, MAX_PAGE_ITEMS, MAX_WAIT_SECONDS
from milepost.server.problems import (
    INTERNAL,
    INVALID,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PROBLEM_MEDIA_TYPE,
    ProblemKind,
    RequestRefused,
    problem_response,
)
from milepost.throttled_warnings import ThrottledWarnings

Stream = Annotated[str, PathParameter(description="The name of a stream, percent-encoded.")]
TraceTarget = Annotated[str, PathParameter(description="A stream, or the id of a message.")]
Group = Annotated[str, PathParameter(description="The group of a subscription.")]
Name = Annotated[str, PathParameter(description="The name of a subscription within its group.")]
Category = Annotated[
    list[str] | None,
    QueryParameter(description="One category, or any of several.", schema_extra={"maxItems": MAX_CHOICES}),
]
Streams = Annotated[
    list[str] | None,
    QueryParameter(description="One stream, or any of several.", schema_extra={"maxItems": MAX_CHOICES}),
]
Types = Annotated[
    list[str] | None,
    QueryParameter(
        description="One type, or any of several; `*` is one dotted part and `>` is the rest.",
        schema_extra={"maxItems": MAX_CHOICES},
    ),
]
Where = Annotated[
    str | None,
    QueryParameter(
        description='A filter over the properties, such as `amount >= 100 && region == "EU"`.',
        schema_extra={"maxLength": MAX_BYTES},
    ),
]
After = Annotated[
    int,
    QueryParameter(
        ge=0, le=MAX_POSITION_NUMBER, description="Only higher positions. Defaults to 0: from the first."
    ),
]
Limit = Annotated[
    int, QueryParameter(ge=1, le=MAX_PAGE_ITEMS, description=f"At most so many. Defaults to {DEFAULT_PAGE_ITEMS}.")
]
ForceRelease = Annotated[
    bool,
    QueryParameter(
        description="Wait for nobody: what does not end within half a second is taken back, which is no attempt."
    ),
]
ReleaseSeconds = Annotated[
    float,
    QueryParameter(ge=0, le=MAX_WAIT_SECONDS, description="How many seconds to wait for workers to let it go."),
]


def operation(
    role: TokenRole | None, *kinds: ProblemKind, large: bool = False, scope_rule: ScopeRule | None = None
) -> dict[str, Any]:
    """Return the options of a handler.

    Args:
        role: The role that it takes; None: anybody may, without a token.
        kinds: The kinds of problems that are its own.
        large: Whether its body may be as large as those of appends.
        scope_rule: How it keeps to the scope of a token. Defaults to none: it refuses tokens with a scope.
    """
    return {"role": role, "kinds": kinds, "large": large, "scope_rule": scope_rule}


async def admit_request(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuses who may not, and parameters that nobody knows."""
    scope: Any = connection.scope
    refuse_options(connection)
    role = handler.opt["role"]
    if role is not None:
        authenticator: Authenticator = scope["state"]["authenticator"]
        principal = scope["state"]["principal"] = await authenticator.authenticate(scope, role)
    if not handler.opt["large"]:
        scope[BODY_SCOPE_KEY].apply_small_limit()
    scope["path_params"] = decode_path_names(scope["path_params"])
    if role is not None:
        scope_guard = scope["state"]["scope_guard"] = ScopeGuard(scope["state"]["mp"], principal.scope)
        await scope_guard.admit(handler.opt["scope_rule"], scope["path_params"])
    known = query_names(handler).values()
    if getattr(handler, "parsed_data_field", None) is None and scope[BODY_SCOPE_KEY].has_content:
        wanted = f": {', '.join(sorted(known))} are parameters in the address" if known else ""
        raise RequestRefused(INVALID, f"This takes no body{wanted}", field="body")
    for name, value in connection.query_params.multi_items():
        if name not in known:
            hint = suggestion(name, sorted(known)) if known else "; it takes none"
            raise RequestRefused(INVALID, f"There is no parameter {name!r}{hint}", field=name)
        if value.lower() == "null" and name in _parameters_without_text(handler):
            raise RequestRefused(INVALID, f"{name}: leave it out if it is not meant: null is no value", field=name)


def refuse_options(connection: ASGIConnection[Any, Any, Any, Any]) -> None:
    """Refuses the only method that the framework adds to every path, and answers with a part of the others."""
    scope: Any = connection.scope
    if scope["method"] != "OPTIONS":
        return
    routes = [route for route in connection.app.routes if isinstance(route, HTTPRoute)]
    here = [route for route in routes if route.path_format == scope["path_template"]]
    methods = {method for route in here for method in route.methods}
    raise MethodNotAllowedException(headers={"allow": ", ".join(methods)})


@lru_cache(maxsize=256)
def _parameters_without_text(handler: BaseRouteHandler) -> Set[str]:
    """Those that are no text: the framework takes the word null for none."""
    fields, named = handler.parsed_fn_signature.parameters, query_names(handler)
    return {outside for name, outside in named.items() if not _has_text(fields[name].annotation)}


def _has_text(annotation: Any) -> bool:
    return annotation is str or any(map(_has_text, get_args(annotation)))


@lru_cache(maxsize=256)
def query_names(handler: BaseRouteHandler) -> Mapping[str, str]:
    """The parameters of a handler's query: what it calls them, and what others do."""
    fields = handler.parsed_fn_signature.parameters.items()
    return {
        name: field.kwarg_definition.name or name
        for name, field in fields
        if isinstance(field.kwarg_definition, QueryParameter)
    }


logger = logging.getLogger("milepost.server")
_complaints = ThrottledWarnings(logger, "the database")


def answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """The answer to a request that failed; what nobody foresaw is logged, and not told."""
    answer = problem_response(
        _translate_framework_error(request, error) if isinstance(error, HTTPException) else error
    )
    if answer.status == INTERNAL.status:
        logger.error("%s %s failed", request.method, _declared_path(request), exc_info=error)
    elif isinstance(error, Unavailable):
        _complaints.warn(f"does not serve: {error}")
    return Response(answer.body, status_code=answer.status, media_type=PROBLEM_MEDIA_TYPE, headers=answer.headers)


def _translate_framework_error(request: Request[Any, Any, Any], error: HTTPException) -> Exception:
    """A problem of ours for one of the framework's."""
    if isinstance(error, NotFoundException):
        return RequestRefused(NOT_FOUND, "There is nothing at this address: /openapi.json says what there is")
    if isinstance(error, MethodNotAllowedException):
        methods = (error.headers or {}).get("allow", "").split(", ")
        allowed = ", ".join(sorted({*methods} - {"OPTIONS"}))
        return RequestRefused(METHOD_NOT_ALLOWED, f"This address takes {allowed}", headers={"allow": allowed})
    if error.status_code >= INTERNAL.status:
        return error
    name, problem = _first_invalid_field(error)
    field = query_names(request.route_handler).get(name, name) if name != "request" else name
    return RequestRefused(INVALID, f"{field}: {problem}", field=field)


def _first_invalid_field(error: HTTPException) -> tuple[str, str]:
    """The first field that is wrong, and what is."""
    found = error.extra if isinstance(error, ValidationException) else None
    if not isinstance(found, list) or not found:
        return "request", error.detail
    field, message = found[0].get("key", "request"), found[0].get("message", error.detail)
    return ("body", "JSON is wanted") if field == "data" else (field, message)


def _declared_path(request: Request[Any, Any, Any]) -> str:
    """The path as it is declared: names that somebody sent are not for a log."""
    return str(request.scope.get("path_template", "?"))
