"""`milepost url`: the address of the PostgreSQL in use."""

from typing import Annotated

import typer

from milepost import embedded
from milepost.cli.ending import Refusal, say
from milepost.cli.options import Schema, Url, address


def url(
    stop: Annotated[
        bool, typer.Option("--stop", help="Stop the embedded PostgreSQL that was left running.")
    ] = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Prints the address of the PostgreSQL in use, for psql and others.

    The embedded one is started if need be and left running until it is stopped with --stop.

    **Example:** `psql $(milepost url)`
    """
    given = address(url, schema)
    if stop:
        _stop(given)
    elif embedded.is_embedded(given):
        typer.echo(embedded.start(given, keep_running=True))
        say(f"the PostgreSQL in {embedded.folder_of(given)} goes on running; `milepost url --stop` ends it")
    else:
        typer.echo(given)


def _stop(given: str) -> None:
    if not embedded.is_embedded(given):
        raise Refusal("--stop is for the embedded PostgreSQL; yours is not touched")
    stopped = embedded.stop(given)
    say(f"the PostgreSQL in {embedded.folder_of(given)} {'is stopped' if stopped else 'was not running'}")
