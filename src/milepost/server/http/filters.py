"""Filters: checked, evaluated, explained. They need no database."""

from litestar import post
from litestar.params import JSONBody

from milepost.filter import compile_filter
from milepost.log.codec import check_properties
from milepost.server.access.reach import Within
from milepost.server.access.role import Role
from milepost.server.http.operation import operation
from milepost.server.problems import FILTER, TOO_LARGE
from milepost.server.wire.filter import CheckedFilter, Explained, FilterToCheck, FilterToTry, Match


@post(
    "/check",
    status_code=200,
    operation_id="check_filter",
    opt=operation(Role.READ, FILTER, within=Within.ANY_SCOPE),
)
async def check(data: JSONBody[FilterToCheck]) -> CheckedFilter:
    """Whether a filter can be used; its canonical text, and the properties it mentions."""
    compiled = compile_filter(data.where)
    return CheckedFilter(compiled.canonical, sorted(compiled.names))


@post(
    "/evaluate",
    status_code=200,
    operation_id="evaluate_filter",
    opt=operation(Role.READ, FILTER, TOO_LARGE, within=Within.ANY_SCOPE),
)
async def evaluate(data: JSONBody[FilterToTry]) -> Match:
    """Whether a message with these properties matches; an error of the evaluation is a problem."""
    check_properties(data.properties)
    return Match(compile_filter(data.where).evaluate(data.properties))


@post(
    "/explain",
    status_code=200,
    operation_id="explain_filter",
    opt=operation(Role.READ, FILTER, TOO_LARGE, within=Within.ANY_SCOPE),
)
async def explain(data: JSONBody[FilterToTry]) -> Explained:
    """What each part of a filter comes to on these properties; an error of the evaluation is part of that."""
    check_properties(data.properties)
    compiled = compile_filter(data.where)
    return Explained(compiled.matches(data.properties), compiled.explain(data.properties).as_dict())


HANDLERS = (
    check,
    evaluate,
    explain,
)
