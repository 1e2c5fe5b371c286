"""`milepost filter`: check an expression, and evaluate it on a message's properties."""

from typing import Annotated, Any

import msgspec
import typer

from milepost.cli.exit_status import ERROR_STATUS, CommandError
from milepost.cli.options import Json, standard_input
from milepost.cli.output import print_json
from milepost.errors import FilterError, InvalidMessage
from milepost.filter import Filter, compile_filter
from milepost.log.codec import check_properties

NO_MATCH_STATUS = 1
"""The status for properties that do not match."""


def filter_(
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="The filter; - reads it from standard input.")],
    properties: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="A message's properties, to evaluate it on.", show_default=False),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each part evaluates to.")] = False,
    as_json: Json = False,
) -> None:
    """Checks a filter. With --properties it also evaluates it: status 0 is a match, 1 is none, 2 is an error.

    **Check:** `milepost filter 'amount >= 100 && region == "EU"'`

    **Evaluate:** `milepost filter 'amount >= 100' --properties '{"amount": 120}' --explain`

    It needs no database. Without --properties it prints the canonical text: filters that share one are the same.
    """
    text = standard_input().read().decode(errors="surrogateescape") if expression == "-" else expression
    if explain and properties is None:
        raise CommandError("--explain shows an evaluation: give --properties too")
    given = None if properties is None else parse_properties(properties)
    try:
        compiled = compile_filter(text)
        matches = None if given is None else _evaluate(compiled, given, explain, as_json)
    except FilterError as error:
        _print_filter_error(error, as_json)
        raise typer.Exit(ERROR_STATUS) from error
    if matches is None:
        _print_canonical(compiled, as_json)
    elif not matches:
        raise typer.Exit(NO_MATCH_STATUS)


def _print_canonical(compiled: Filter, as_json: bool) -> None:
    if as_json:
        print_json({"canonical": compiled.canonical, "properties": sorted(compiled.names)})
    else:
        typer.echo(compiled.canonical)


def parse_properties(text: str) -> dict[str, Any]:
    """Return the properties that a text has; refuse what a message could not have."""
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
        check_properties(found)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise CommandError(f"--properties: an object such as '{{\"amount\": 120}}' is wanted: {error}") from error
    except InvalidMessage as error:
        raise CommandError(f"--properties: {error}") from error
    return found


def _evaluate(compiled: Filter, properties: dict[str, Any], explain: bool, as_json: bool) -> bool:
    explanation = compiled.explain(properties)
    if as_json:
        print_json({"matches": compiled.matches(properties), "explanation": explanation.as_dict()})
    elif explain:
        typer.echo(str(explanation))
    matches = compiled.evaluate(properties)
    if not as_json:
        typer.echo("match" if matches else "no match")
    return matches


def _print_filter_error(error: FilterError, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"kind": error.kind, "offset": error.offset, "message": str(error)}})
    typer.echo(str(error), err=True)
