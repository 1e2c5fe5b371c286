"""Looks at every request before its handler does: who makes it, and whether it says only what is understood."""

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import Any, get_args

from litestar.connection import ASGIConnection
from litestar.exceptions import MethodNotAllowedException
from litestar.handlers import BaseRouteHandler
from litestar.params import QueryParameter
from litestar.routes import HTTPRoute

from milepost.server.access.entrance import Entrance
from milepost.server.access.reach import Reach
from milepost.server.body import BODY
from milepost.server.problems import INVALID, Refused
from milepost.server.segments import names
from milepost.suggestions import suggestion


async def admit(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Refuses who may not, and parameters that nobody knows."""
    scope: Any = connection.scope
    refuse_options(connection)
    role = handler.opt["role"]
    if role is not None:
        entrance: Entrance = scope["state"]["entrance"]
        visitor = scope["state"]["visitor"] = await entrance.visitor(scope, role)
    if not handler.opt["large"]:
        scope[BODY].is_small()
    scope["path_params"] = names(scope["path_params"])
    if role is not None:
        reach = scope["state"]["reach"] = Reach(scope["state"]["mp"], visitor.scope)
        await reach.admit(handler.opt["within"], scope["path_params"])
    known = query_names(handler).values()
    if getattr(handler, "parsed_data_field", None) is None and scope[BODY].says_something:
        wanted = f": {', '.join(sorted(known))} are parameters in the address" if known else ""
        raise Refused(INVALID, f"This takes no body{wanted}", field="body")
    for name, value in connection.query_params.multi_items():
        if name not in known:
            hint = suggestion(name, sorted(known)) if known else "; it takes none"
            raise Refused(INVALID, f"There is no parameter {name!r}{hint}", field=name)
        if value.lower() == "null" and name in _without_text(handler):
            raise Refused(INVALID, f"{name}: leave it out if it is not meant: null is no value", field=name)


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
def _without_text(handler: BaseRouteHandler) -> Set[str]:
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
