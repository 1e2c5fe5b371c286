"""The description of the API, OpenAPI 3.1: made of the handlers, the table of problems and the sources' words."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, get_args, get_type_hints

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.params import QueryParameter

from milepost.server import docstrings
from milepost.server import problems as p
from milepost.server.access.reach import Within
from milepost.server.examples import EXAMPLES

CONFIG = OpenAPIConfig(
    title="Milepost",
    version=version("milepost"),
    description=(
        "Durable subscriptions on PostgreSQL. Messages are appended to streams of one log; subscriptions follow "
        "it, each at its own pace. Names in a path are percent-encoded, a slash in them too. Every error has the "
        "form of RFC 9457; its `type` says which it is."
    ),
)
SCOPES = {
    None: " A token with a scope is refused.",
    Within.ANY_SCOPE: "",
    Within.ITSELF: "",
    Within.STREAM: " One that is for some categories has to be for that of the stream.",
    Within.SUBSCRIPTION: (
        " One with a scope has to be for the group of the subscription, and for all categories that it selects."
    ),
}
"""What is said of operations by how they keep to the scope of a token; where it is nothing, their words say it."""
PROBLEM = {"$ref": "#/components/schemas/Problem"}
LARGEST = 2**63 - 1

_EVERY = (p.INVALID, p.NOT_LOCAL, p.TOO_LARGE, p.URL_TOO_LONG, p.NOT_JSON, p.WRONG_HOST, p.HEAD_TOO_LARGE)
_WITH_ROLE = (p.UNAUTHENTICATED, p.FORBIDDEN, p.TOO_MANY_ATTEMPTS, p.UNAVAILABLE, p.NOT_READY)
_WITH_BODY = (p.TOO_SLOW, p.TOO_MANY)


class Description:
    """The description of an application, made when first asked for."""

    def __init__(self, catalogue: Callable[[], Litestar], *, asks_for_tokens: bool) -> None:
        self._catalogue = catalogue
        self._security: list[dict[str, list[str]]] = [{"token": []}] if asks_for_tokens else [{"token": []}, {}]

    @cached_property
    def document(self) -> dict[str, Any]:
        """All of it."""
        application = self._catalogue()
        document: dict[str, Any] = application.openapi_schema.to_schema()
        handlers = {handler.operation_id: handler for handler in _handlers(application)}
        for path in document["paths"].values():
            for described in path.values():
                _complete(described, handlers[described["operationId"]])
                if handlers[described["operationId"]].opt["role"] is not None:
                    described["security"] = self._security
        _complete_schemas(document["components"]["schemas"], handlers.values())
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return document

    @cached_property
    def encoded(self) -> bytes:
        """The same as JSON."""
        return msgspec.json.encode(self.document)


def _handlers(application: Litestar) -> Iterator[HTTPRouteHandler]:
    for route in application.routes:
        for handler in getattr(route, "route_handlers", ()):
            if isinstance(handler, HTTPRouteHandler) and handler.resolve_include_in_schema():
                yield handler


def _complete(described: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """An operation with its words, its problems, its example, and who may do it."""
    words = docstrings.summary(handler.fn)
    described["summary"], described["description"] = words.partition("\n\n")[0], words
    role = handler.opt["role"]
    if role is not None:
        described["description"] += f"\n\nIt takes a token with the role `{role}`, unless no token is asked for."
        described["description"] += SCOPES[handler.opt["within"]]
    kinds = [*_EVERY, *(_WITH_ROLE if role else ()), *(_WITH_BODY if "requestBody" in described else ())]
    # What the framework says of 400 is about an answer that it would give itself.
    declared = {status: answer for status, answer in described["responses"].items() if status != "400"}
    described["responses"] = _answers([*kinds, *handler.opt["kinds"]]) | declared
    for parameter in described.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
    _bound(described, handler)
    if "requestBody" in described:
        described["requestBody"]["content"]["application/json"]["schema"] = _body_of(handler)
    for schema in _schemas(described):
        _whole(schema)
    _show_example(described)


def _body_of(handler: HTTPRouteHandler) -> dict[str, Any]:
    """The body as it is checked: the framework forgets how many of something there may be."""
    field = handler.parsed_data_field
    wanted = Any if field is None else field.raw
    [schema], _ = msgspec.json.schema_components([wanted], ref_template="#/components/schemas/{name}")
    return schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is not meant is left out: none is ever null."""
    choices = [choice for choice in schema.get("oneOf", ()) if choice.get("type") != "null"]
    if not choices:
        return schema
    rest = {name: value for name, value in schema.items() if name != "oneOf"}
    return {**choices[0], **rest} if len(choices) == 1 else {**rest, "oneOf": choices}


def _bound(described: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """What is checked of parameters: of one that may be left out the framework forgets bounds that are zero."""
    named = {parameter["name"]: parameter["schema"] for parameter in described.get("parameters", ())}
    for name, field in handler.parsed_fn_signature.parameters.items():
        known = field.kwarg_definition
        if isinstance(known, QueryParameter):
            bounds = {"minimum": known.ge, "exclusiveMinimum": known.gt, **(known.schema_extra or {})}
            named[known.name or name] |= {word: bound for word, bound in bounds.items() if bound is not None}


def _answers(kinds: Sequence[p.Kind]) -> dict[str, Any]:
    """What may go wrong, by status."""
    answers: dict[str, Any] = {}
    for kind in sorted(set(kinds), key=lambda kind: (kind.status, kind.slug)):
        line = f"`{p.BASE}{kind.slug}`: {kind.title}."
        known = answers.setdefault(
            str(kind.status), {"description": "", "content": {p.MEDIA_TYPE: {"schema": PROBLEM}}}
        )
        known["description"] = f"{known['description']}\n{line}".strip()
    return answers


def _schemas(node: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a part of the description."""
    if isinstance(node, dict):
        if "type" in node or "oneOf" in node:
            yield node
        for value in node.values():
            yield from _schemas(value)
    elif isinstance(node, list):
        for value in node:
            yield from _schemas(value)


def _whole(schema: dict[str, Any]) -> None:
    """Bounds as whole numbers where they are."""
    for bound in ("minimum", "maximum"):
        if isinstance(schema.get(bound), float) and schema[bound].is_integer():
            schema[bound] = min(LARGEST, int(schema[bound]))


def _show_example(described: dict[str, Any]) -> None:
    example = EXAMPLES.get(described["operationId"])
    if example is None:
        return
    if example.request is not None:
        described["requestBody"]["content"]["application/json"]["example"] = example.request
    if example.answer is not None:
        described["responses"]["200"]["content"]["application/json"]["example"] = example.answer


def _complete_schemas(schemas: dict[str, Any], handlers: Iterable[HTTPRouteHandler]) -> None:
    """The values with the words of their sources."""
    classes = {cls.__name__: cls for handler in handlers for cls in _classes_of(handler)}
    for name, schema in schemas.items():
        cls = classes[name]
        schema["description"] = docstrings.summary(cls)
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = False
            schema["properties"] = _taken(cls)
        for field, words in docstrings.fields(cls).items():
            if field in schema.get("properties", {}):
                schema["properties"][field] = {**schema["properties"][field], "description": words}
    schemas["Problem"] = _problem()


def _taken(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of what is sent, as they are checked: the framework leaves some of that out."""
    _, components = msgspec.json.schema_components([cls], ref_template="#/components/schemas/{name}")
    fields: dict[str, Any] = components[cls.__name__]["properties"]
    return fields


def _problem() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([p.Problem], ref_template="#/components/schemas/{name}")
    problem: dict[str, Any] = components["Problem"]
    for field, words in docstrings.fields(p.Problem).items():
        problem["properties"][field]["description"] = words
    problem["example"] = {
        "type": f"{p.BASE}{p.WRONG_VERSION.slug}",
        "title": p.WRONG_VERSION.title,
        "status": p.WRONG_VERSION.status,
        "detail": "stream 'order-42' is at version 4, not at 3: read it again and decide anew",
        "transient": False,
        "stream": "order-42",
        "expected": 3,
        "actual": 4,
    }
    return problem


def _classes_of(handler: HTTPRouteHandler) -> Iterator[type]:
    for field in (handler.parsed_return_field, handler.parsed_data_field):
        if field is not None:
            yield from _classes(field.annotation, set())


def _classes(annotation: Any, seen: set[Any]) -> Iterator[type]:
    """The classes of values that a type is made of."""
    for part in get_args(annotation):
        yield from _classes(part, seen)
    if not isinstance(annotation, type) or annotation in seen:
        return
    seen.add(annotation)
    if issubclass(annotation, msgspec.Struct) or is_dataclass(annotation):
        yield annotation
        for hint in get_type_hints(annotation).values():
            yield from _classes(hint, seen)
    elif annotation.__module__.startswith("milepost"):
        yield annotation
