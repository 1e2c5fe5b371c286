"""`milepost schema`: the tables and functions that hold the log, and the roles of its users."""

import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from milepost.cli import signals
from milepost.cli.exit_status import CommandError, argument_errors
from milepost.cli.options import Json, Schema, Url, make_milepost, resolve_settings
from milepost.cli.output import ProgressBar, console, new_table, print_json, print_table
from milepost.postgres import roles as rights
from milepost.postgres import schema as log_schema

TOO_OLD_STATUS = 1
"""The status where this program must not run on the schema."""

app = typer.Typer(rich_markup_mode="markdown")


@app.callback(invoke_without_command=True)
def schema(context: typer.Context) -> None:
    """Brings the schema up to date, shows its state, prints its SQL and that of its users.

    **Example:** `milepost schema migrate --url postgresql://localhost/shop`
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def migrate(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Brings the schema to what this program needs. Any number of processes may do it at once.

    **Example:** `milepost schema migrate --url postgresql://localhost/shop`
    """
    name, number, added = signals.run_async(_migrate(url, schema))
    if as_json:
        print_json({"schema": name, "number": number, "added": added})
    elif added:
        console().print(f"schema {name!r} is at {number} now; added: {', '.join(added)}")
    else:
        console().print(f"schema {name!r} is at {number} already")


@app.command()
def status(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Shows which migrations the database has and which are missing.

    **Example:** `milepost schema status --json`

    The status is 1 if this program is too old for the schema.
    """
    name, found = signals.run_async(_status(url, schema))
    if as_json:
        print_json(_status_as_dict(name, found))
    else:
        _print_status(found)
    if found.is_newer:
        raise typer.Exit(TOO_OLD_STATUS)


def _print_status(found: log_schema.SchemaStatus) -> None:
    rows = new_table("number", "migration", "applied", "by milepost")
    for entry in found.applied:
        applied = f"{entry['applied'].astimezone():%Y-%m-%d %H:%M:%S}"
        rows.add_row(str(entry["number"]), entry["name"], applied, entry["program"])
    for migration in found.pending:
        rows.add_row(
            str(migration.number), migration.name, "missing: run `milepost schema migrate`", "", style="yellow"
        )
    print_table(rows)
    if found.is_newer:
        console().print("This program is too old for it: install a newer milepost.", style="red")


@app.command()
def sql(
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Only the migrations after this number.")] = 0,
    schema: Schema = None,
) -> None:
    """Prints the SQL of the migrations, in one transaction. It needs no database.

    **Example:** `milepost schema sql | psql shop`
    """
    if after >= log_schema.NEWEST_MIGRATION_NUMBER:
        raise CommandError(
            f"--after {after}: there is nothing after {log_schema.NEWEST_MIGRATION_NUMBER}, the newest migration"
        )
    sys.stdout.write(log_schema.printable_sql(resolve_settings(None, schema)["schema"].value, after))


def _known_roles(names: list[str] | None) -> list[str] | None:
    for name in names or []:
        if name not in rights.ROLES:
            near = get_close_matches(name, rights.ROLES, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise typer.BadParameter(f"{name!r} is no role: {meant}There are {', '.join(rights.ROLES)}")
    return names


@app.command()
def roles(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ROLE]...",
            callback=_known_roles,
            help=f"Some of {', '.join(rights.ROLES)}. All of them if left out.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What their names begin with. By default the schema's name: milepost_reader and so on.",
            show_default=False,
        ),
    ] = None,
    schema: Schema = None,
) -> None:
    """Prints the SQL that lets users in: as a reader, an appender, a worker or an operator. It needs no database.

    It makes a role for each and grants what that needs and nothing else. Run it again after each migration, and
    grant the roles to your users: `grant milepost_worker to shop`.

    **Example:** `milepost schema roles | psql shop`
    """
    name = resolve_settings(None, schema)["schema"].value
    wanted = [role for role in rights.ROLES.values() if not names or role.name in names]
    with argument_errors():
        sys.stdout.write(rights.roles_sql(name, name if prefix is None else prefix, wanted))


async def _migrate(url: str | None, schema: str | None) -> tuple[str, int, list[str]]:
    mp = make_milepost(url, schema, migrate="off")
    name = mp.settings["schema"].value
    with ProgressBar("migrating"):
        async with mp:
            added = await mp.log.migrate_schema()
            found = await mp.log.schema_status()
    return name, found.number, [f"{migration.number:03} {migration.name}" for migration in added]


async def _status(url: str | None, schema: str | None) -> tuple[str, log_schema.SchemaStatus]:
    mp = make_milepost(url, schema, migrate="off")
    async with mp:
        return mp.settings["schema"].value, await mp.log.schema_status()


def _status_as_dict(name: str, found: log_schema.SchemaStatus) -> dict[str, Any]:
    return {
        "schema": name,
        "number": found.number,
        "newest": log_schema.NEWEST_MIGRATION_NUMBER,
        "oldest": found.oldest,
        "up_to_date": not found.pending and not found.is_newer,
        "applied": found.applied,
        "pending": [{"number": migration.number, "name": migration.name} for migration in found.pending],
    }
