"""Filters over HTTP: check, evaluate, explain. They need no database."""

from typing import Annotated, Any

import msgspec
from litestar import post
from litestar.params import JSONBody

from milepost.filter import compile_filter
from milepost.filter.filter import MAX_BYTES
from milepost.log.codec import check_properties
from milepost.log.message import Property
from milepost.server.access.permissions import TokenRole
from milepost.server.access.scope_guard import ScopeRule
from milepost.server.http.handlers import operation
from milepost.server.problems import FILTER, TOO_LARGE
from milepost.wire.values import schema_words


class FilterToCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An expression over a message's properties."""

    where: Annotated[str, schema_words(maxLength=MAX_BYTES)]


class FilterToTry(FilterToCheck, frozen=True, forbid_unknown_fields=True):
    """An expression, and the properties of a message."""

    properties: dict[str, Property]


class CheckedFilter(msgspec.Struct, frozen=True):
    """A filter that can be used."""

    canonical: str
    """The one text of all filters that differ only in spacing, spelling and parentheses."""
    properties: list[str]
    """The properties that it mentions."""


class Match(msgspec.Struct, frozen=True):
    """Whether a message with these properties matches."""

    matches: bool


class Explained(msgspec.Struct, frozen=True):
    """What each part of a filter came to on these properties."""

    matches: bool
    explanation: dict[str, Any]
    """The parts as a tree: `text`; `status`: `value`, `error`, `not evaluated`; `value` or `error`; `children`."""


@post(
    "/check",
    status_code=200,
    operation_id="check_filter",
    opt=operation(TokenRole.READ, FILTER, scope_rule=ScopeRule.ANY_SCOPE),
)
async def check_filter(data: JSONBody[FilterToCheck]) -> CheckedFilter:
    """Whether a filter can be used; its canonical text, and the properties it mentions."""
    compiled = compile_filter(data.where)
    return CheckedFilter(compiled.canonical, sorted(compiled.names))


@post(
    "/evaluate",
    status_code=200,
    operation_id="evaluate_filter",
    opt=operation(TokenRole.READ, FILTER, TOO_LARGE, scope_rule=ScopeRule.ANY_SCOPE),
)
async def evaluate_filter(data: JSONBody[FilterToTry]) -> Match:
    """Whether a message with these properties matches; an error of the evaluation is a problem."""
    check_properties(data.properties)
    return Match(compile_filter(data.where).evaluate(data.properties))


@post(
    "/explain",
    status_code=200,
    operation_id="explain_filter",
    opt=operation(TokenRole.READ, FILTER, TOO_LARGE, scope_rule=ScopeRule.ANY_SCOPE),
)
async def explain_filter(data: JSONBody[FilterToTry]) -> Explained:
    """What each part of a filter comes to on these properties; an error of the evaluation is part of that."""
    check_properties(data.properties)
    compiled = compile_filter(data.where)
    return Explained(compiled.matches(data.properties), compiled.explain(data.properties).as_dict())


HANDLERS = (
    check_filter,
    evaluate_filter,
    explain_filter,
)
