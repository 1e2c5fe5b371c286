"""The OpenAPI 3.1 description: made of the handlers, the table of problems, docstrings and examples."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cache, cached_property
from importlib.metadata import version
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
from litestar import Litestar, Response, get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.params import QueryParameter

from milepost.server import problems as p
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.http.handlers import operation


def docstring_text(described: object) -> str:
    """The docstring of a class or function, one line a paragraph."""
    paragraphs = (inspect.getdoc(described) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a class, and of the classes it is made of."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("milepost"):
            found |= _own_field_docstrings(each)
    return found


def _own_field_docstrings(cls: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    if not isinstance(tree, ast.ClassDef):
        return {}
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(text):
            found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())  # type: ignore[attr-defined]
    return found


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )


class OperationExample(NamedTuple):
    """What is sent, and what is answered."""

    request: Any = None
    answer: Any = None


_ID = "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f"
_MESSAGE = {
    "position": 81244,
    "stream": "order-42",
    "version": 4,
    "id": _ID,
    "type": "order.placed",
    "time": "2026-03-01T12:00:00.250000Z",
    "data": {"order": 42, "amount": 120},
    "properties": {"amount": 120, "region": "EU"},
    "metadata": {"correlation_id": "7d1f"},
}
_TO_APPEND = {
    "type": "order.placed",
    "data": {"order": 42, "amount": 120},
    "properties": {"amount": 120, "region": "EU"},
    "metadata": {"correlation_id": "7d1f"},
    "id": _ID,
}
_APPENDED = {"stream": "order-42", "version": 4, "position": 81244, "duplicate": False, "count": 1}
_PLAN = {"position": 81000, "again": 244, "passed_over": 0, "rows": {"parked": 2}}
_DECIDED = {"moved": 1, "refused": {"81250": "it is running: wait for how that ends"}}

_OTHER = "3-81250-0cc175b9c0f1b6a831c399e269772661"
_CLAIM = "3-81244-92eb5ffee6ae2fec3ad71c777531578f"

EXAMPLES: dict[str, OperationExample] = {
    "append": OperationExample(_TO_APPEND, _APPENDED),
    "append_many": OperationExample(
        [
            {"stream": "order-42", "messages": [_TO_APPEND], "expected": 3},
            {"stream": "stock-7", "messages": [{"type": "stock.reserved", "data": {"pieces": 2}}]},
        ],
        {
            "appended": [
                _APPENDED,
                {"stream": "stock-7", "version": 12, "position": 81245, "duplicate": False, "count": 1},
            ]
        },
    ),
    "read_stream": OperationExample(answer={"messages": [_MESSAGE], "next": 4, "more": False}),
    "read": OperationExample(answer={"messages": [_MESSAGE], "next": 81244, "more": False}),
    "last": OperationExample(answer={"stream": "order-42", "version": 4}),
    "head": OperationExample(answer={"position": 81244}),
    "list_nodes": OperationExample(
        answer={
            "nodes": [
                {
                    "address": "https://milepost-1.internal:8480",
                    "version": "milepost 0.1.0",
                    "since": "2026-11-15T09:12:44.180Z",
                }
            ]
        }
    ),
    "plan_move": OperationExample(answer=_PLAN),
    "plan_replay": OperationExample(answer=_PLAN),
    "create_subscription": OperationExample(
        {
            "name": "shipping",
            "category": "order",
            "where": 'region == "EU"',
            "start": "now",
            "ordered_by": {"property": "customer"},
            "retry": {"attempts": 5, "delay": 10},
        }
    ),
    "update_subscription": OperationExample({"where": 'region == "EU" && amount >= 100', "timeout": 60}),
    "move_subscription": OperationExample({"to": "2026-03-01T12:00:00Z"}, {"forgotten": 2}),
    "replay_subscription": OperationExample({"start": 81000, "end": 81244}, {"again": 244}),
    "list_deliveries": OperationExample(
        answer={
            "deliveries": [
                {
                    "position": 81244,
                    "state": "parked",
                    "key": "order-42",
                    "attempts": 11,
                    "total": 11,
                    "size": 51,
                    "since": "2026-03-01T12:34:56.500000Z",
                    "due": None,
                    "reason": "KeyError: 'amount'",
                    "error": "Traceback (most recent call last): …",
                    "consumer": None,
                    "waiting_behind": 2,
                    "message": _MESSAGE,
                }
            ],
            "next": 81244,
            "more": False,
        }
    ),
    "count_deliveries": OperationExample(answer={"count": 2}),
    "retry_deliveries": OperationExample({"positions": [81244, 81250]}, _DECIDED),
    "skip_deliveries": OperationExample({"up_to": 81250, "limit": 100, "reason": "KeyError"}, _DECIDED),
    "pull": OperationExample(
        answer={
            "deliveries": [
                {
                    "token": _CLAIM,
                    "attempt": 1,
                    "replay": False,
                    "expires": "2026-03-01T12:05:00.250000Z",
                    "message": _MESSAGE,
                }
            ],
            "more": False,
        }
    ),
    "settle": OperationExample(
        {
            "ack": [_CLAIM],
            "retry": {_OTHER: "the printer is on fire"},
            "after": 60,
            "id": "5f3a4c1e-0d3b-4c56-9f0e-2a1b9c8d7e6f",
        },
        {"moved": [_CLAIM], "refused": [_OTHER]},
    ),
    "progress": OperationExample(
        answer={"stream": "order-42", "handled": 3, "known": 4, "lagging": True, "exact": True}
    ),
    "check_filter": OperationExample(
        {"where": '(amount>=100) and region = "EU"'},
        {"canonical": 'amount >= 100 && region == "EU"', "properties": ["amount", "region"]},
    ),
    "evaluate_filter": OperationExample(
        {"where": "amount >= 100", "properties": {"amount": 120}}, {"matches": True}
    ),
    "explain_filter": OperationExample(
        {"where": "amount >= 100", "properties": {"amount": 120}},
        {
            "matches": True,
            "explanation": {
                "text": "amount >= 100",
                "status": "value",
                "value": True,
                "children": [
                    {"text": "amount", "status": "value", "value": 120, "children": []},
                    {"text": "100", "status": "value", "value": 100, "children": []},
                ],
            },
        },
    ),
    "healthz": OperationExample(answer={"status": "ok", "reasons": []}),
    "readyz": OperationExample(answer={"status": "ok", "reasons": []}),
}


OPENAPI_CONFIG = OpenAPIConfig(
    title="Milepost",
    version=version("milepost"),
    description=(
        "Durable subscriptions on PostgreSQL. Messages are appended to streams of one log; subscriptions follow "
        "it, each at its own pace. Names in a path are percent-encoded, a slash in them too. Every error has the "
        "form of RFC 9457; its `type` says which it is."
    ),
)
SCOPE_SENTENCES = {
    None: " A token with a scope is refused.",
    ScopeRule.ANY_SCOPE: "",
    ScopeRule.ITSELF: "",
    ScopeRule.STREAM: " One that is for some categories has to be for that of the stream.",
    ScopeRule.SUBSCRIPTION: (
        " One with a scope has to be for the group of the subscription, and for all categories that it selects."
    ),
}
"""What is said of operations by how they keep to the scope of a token; where it is nothing, their words say it."""
SCHEMA_PREFIX = "#/components/schemas/"
SCHEMA_NAMES = {"ListedDelivery": "Delivery", "DecisivePart": "Part", "ReportedFailure": "Failure"}
"""Names that schemas keep for clients, where the class has another: that word means something else in the code."""
PROBLEM_REFERENCE = {"$ref": "#/components/schemas/Problem"}
MAX_SCHEMA_NUMBER = 2**63 - 1

_COMMON_PROBLEMS = (
    p.INVALID,
    p.NOT_LOCAL,
    p.TOO_LARGE,
    p.URL_TOO_LONG,
    p.NOT_JSON,
    p.WRONG_HOST,
    p.HEAD_TOO_LARGE,
)
_ROLE_PROBLEMS = (p.UNAUTHENTICATED, p.FORBIDDEN, p.TOO_MANY_ATTEMPTS, p.UNAVAILABLE, p.NOT_READY)
_BODY_PROBLEMS = (p.TOO_SLOW, p.TOO_MANY)


class ApiDescription:
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
                _complete_operation(described, handlers[described["operationId"]])
                if handlers[described["operationId"]].opt["role"] is not None:
                    described["security"] = self._security
        components = document["components"]
        _complete_schemas(components["schemas"], handlers.values())
        # Only now: what is done before finds classes by the names of their schemas.
        renamed = {SCHEMA_NAMES.get(name, name): schema for name, schema in components["schemas"].items()}
        components["schemas"] = {**dict(sorted(renamed.items())), "Problem": _problem_schema()}
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        _use_schema_names(document)
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


def _complete_operation(described: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """An operation with its words, its problems, its example, and who may do it."""
    words = docstring_text(handler.fn)
    described["summary"], described["description"] = words.partition("\n\n")[0], words
    role = handler.opt["role"]
    if role is not None:
        described["description"] += f"\n\nIt takes a token with the role `{role}`, unless no token is asked for."
        described["description"] += SCOPE_SENTENCES[handler.opt["scope_rule"]]
    kinds = [
        *_COMMON_PROBLEMS,
        *(_ROLE_PROBLEMS if role else ()),
        *(_BODY_PROBLEMS if "requestBody" in described else ()),
    ]
    # What the framework says of 400 is about an answer that it would give itself.
    declared = {status: answer for status, answer in described["responses"].items() if status != "400"}
    described["responses"] = _problem_responses([*kinds, *handler.opt["kinds"]]) | declared
    for parameter in described.get("parameters", ()):
        parameter["schema"] = _without_null(parameter["schema"])
    _add_parameter_bounds(described, handler)
    if "requestBody" in described:
        described["requestBody"]["content"]["application/json"]["schema"] = _body_schema(handler)
    for schema in _schemas(described):
        _make_bounds_whole(schema)
    _add_example(described)


def _body_schema(handler: HTTPRouteHandler) -> dict[str, Any]:
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


def _add_parameter_bounds(described: dict[str, Any], handler: HTTPRouteHandler) -> None:
    """What is checked of parameters: of one that may be left out the framework forgets bounds that are zero."""
    named = {parameter["name"]: parameter["schema"] for parameter in described.get("parameters", ())}
    for name, field in handler.parsed_fn_signature.parameters.items():
        known = field.kwarg_definition
        if isinstance(known, QueryParameter):
            bounds = {"minimum": known.ge, "exclusiveMinimum": known.gt, **(known.schema_extra or {})}
            named[known.name or name] |= {word: bound for word, bound in bounds.items() if bound is not None}


def _problem_responses(kinds: Sequence[p.ProblemKind]) -> dict[str, Any]:
    """What may go wrong, by status."""
    answers: dict[str, Any] = {}
    for kind in sorted(set(kinds), key=lambda kind: (kind.status, kind.slug)):
        line = f"`{p.PROBLEM_TYPE_BASE}{kind.slug}`: {kind.title}."
        known = answers.setdefault(
            str(kind.status), {"description": "", "content": {p.PROBLEM_MEDIA_TYPE: {"schema": PROBLEM_REFERENCE}}}
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


def _use_schema_names(node: Any) -> None:
    """Replace the names of classes by `SCHEMA_NAMES`, in references and titles."""
    if isinstance(node, dict):
        reference, title = node.get("$ref"), node.get("title")
        if isinstance(reference, str):
            name = reference.removeprefix(SCHEMA_PREFIX)
            node["$ref"] = f"{SCHEMA_PREFIX}{SCHEMA_NAMES.get(name, name)}"
        if isinstance(title, str):
            node["title"] = SCHEMA_NAMES.get(title, title)
        for value in node.values():
            _use_schema_names(value)
    elif isinstance(node, list):
        for value in node:
            _use_schema_names(value)


def _make_bounds_whole(schema: dict[str, Any]) -> None:
    """Bounds as whole numbers where they are."""
    for bound in ("minimum", "maximum"):
        if isinstance(schema.get(bound), float) and schema[bound].is_integer():
            schema[bound] = min(MAX_SCHEMA_NUMBER, int(schema[bound]))


def _add_example(described: dict[str, Any]) -> None:
    example = EXAMPLES.get(described["operationId"])
    if example is None:
        return
    if example.request is not None:
        described["requestBody"]["content"]["application/json"]["example"] = example.request
    if example.answer is not None:
        described["responses"]["200"]["content"]["application/json"]["example"] = example.answer


def _complete_schemas(schemas: dict[str, Any], handlers: Iterable[HTTPRouteHandler]) -> None:
    """The values with the words of their sources."""
    classes = {cls.__name__: cls for handler in handlers for cls in _handler_classes(handler)}
    for name, schema in schemas.items():
        cls = classes[name]
        schema["description"] = docstring_text(cls)
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.forbid_unknown_fields:
            schema["additionalProperties"] = False
            schema["properties"] = _checked_properties(cls)
        for field, words in field_docstrings(cls).items():
            if field in schema.get("properties", {}):
                schema["properties"][field] = {**schema["properties"][field], "description": words}


def _checked_properties(cls: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of what is sent, as they are checked: the framework leaves some of that out."""
    _, components = msgspec.json.schema_components([cls], ref_template="#/components/schemas/{name}")
    fields: dict[str, Any] = components[cls.__name__]["properties"]
    return fields


def _problem_schema() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([p.Problem], ref_template="#/components/schemas/{name}")
    problem: dict[str, Any] = components["Problem"]
    for field, words in field_docstrings(p.Problem).items():
        problem["properties"][field]["description"] = words
    problem["example"] = {
        "type": f"{p.PROBLEM_TYPE_BASE}{p.WRONG_VERSION.slug}",
        "title": p.WRONG_VERSION.title,
        "status": p.WRONG_VERSION.status,
        "detail": "stream 'order-42' is at version 4, not at 3: read it again and decide anew",
        "transient": False,
        "stream": "order-42",
        "expected": 3,
        "actual": 4,
    }
    return problem


def _handler_classes(handler: HTTPRouteHandler) -> Iterator[type]:
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


@get("/openapi.json", include_in_schema=False, opt=operation(None))
async def describe(description: NamedDependency[ApiDescription]) -> Response[bytes]:
    """OpenAPI 3.1."""
    return Response(description.encoded, media_type="application/json")


DESCRIPTION_HANDLERS = (describe,)
