"""`milepost config` and `milepost url`: every option and its source; the address of the PostgreSQL in use."""

from typing import Annotated, Any

import typer

from milepost import embedded
from milepost.cli.exit_status import CommandError, print_note
from milepost.cli.options import Json, Schema, Url, database_url, resolve_settings
from milepost.cli.output import new_table, print_json, print_table, visible
from milepost.options import OPTIONS
from milepost.postgres.describe import hide_password


def config(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Prints each option: its value, where it came from, its environment variable, what it is for.

    Passwords are not shown.

    **Example:** `MILEPOST_POOL_SIZE=20 milepost config`
    """
    found = [
        _describe_option(name, setting.value, setting.source)
        for name, setting in resolve_settings(url, schema).items()
    ]
    if as_json:
        print_json(found)
        return
    rows = new_table("option", "value", "from", "variable", "what it is for")
    for option in found:
        value = "" if option["value"] is None else visible(str(option["value"]))
        rows.add_row(option["name"], value, option["source"], option["variable"] or "in code", option["help"])
    print_table(rows)


def _describe_option(name: str, value: Any, source: str) -> dict[str, Any]:
    option = OPTIONS[name]
    return {
        "name": name,
        "value": shown_address(value) if name in ("url", "progress") and value is not None else value,
        "source": {"given": "command line"}.get(source, source),
        "variable": option.variable,
        "help": option.help,
    }


def shown_address(url: str) -> str:
    """Return an address with stars for what is secret in it; nothing is in that of an embedded PostgreSQL."""
    return url if embedded.is_embedded(url) else hide_password(url)


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
    given = database_url(url, schema)
    if stop:
        _stop_embedded(given)
    elif embedded.is_embedded(given):
        typer.echo(embedded.start(given, keep_running=True))
        print_note(f"the PostgreSQL in {embedded.folder_of(given)} goes on running; `milepost url --stop` ends it")
    else:
        typer.echo(given)


def _stop_embedded(given: str) -> None:
    if not embedded.is_embedded(given):
        raise CommandError("--stop is for the embedded PostgreSQL; yours is not touched")
    stopped = embedded.stop(given)
    print_note(f"the PostgreSQL in {embedded.folder_of(given)} {'is stopped' if stopped else 'was not running'}")
