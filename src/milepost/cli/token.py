"""`milepost token`: who may use the server."""

import asyncio
from typing import Annotated

import typer

from milepost.cli.ending import Refusal, say
from milepost.cli.options import Json, Schema, Url, milepost
from milepost.cli.output import console, show, table, visible, write_json
from milepost.server.access.role import Role
from milepost.server.access.tokens import TokenInfo, Tokens

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="What the token is for, such as the program that has it.")
]


@app.callback()
def token() -> None:
    """Makes, lists and revokes tokens: what `milepost serve` asks for on any address but this machine's."""


@app.command()
def make(
    name: Name,
    role: Annotated[
        list[Role],
        typer.Option(
            help="What it allows; can be repeated. read: look at everything; append; consume: take and settle "
            "deliveries; operate: change subscriptions, retry and skip messages."
        ),
    ],
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Makes a token and prints it, this once: only a hash of it is stored.

    **Example:** `milepost token make shop --role append --role read`
    """
    secret = asyncio.run(_make(name, role, url, schema))
    if as_json:
        write_json({"name": name, "roles": sorted(set(role)), "token": secret})
        return
    typer.echo(secret)
    say("keep it: it is not shown again")


@app.command("list")
def list_(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Lists every token that was made: what it allows, when it was last used, whether it is revoked."""
    found = asyncio.run(_list(url, schema))
    if as_json:
        write_json(found)
        return
    rows = table("name", "roles", "created", "last used", "revoked")
    for each in found:
        times = (
            f"{at.astimezone():%Y-%m-%d %H:%M}" if at else ""
            for at in (each.created, each.last_used, each.revoked)
        )
        rows.add_row(visible(each.name), " ".join(each.roles), *times, style="dim" if each.revoked else None)
    show(rows)


@app.command()
def revoke(name: Name, url: Url = None, schema: Schema = None) -> None:
    """Revokes a token: within seconds it opens nothing any more, on every server."""
    if not asyncio.run(_revoke(name, url, schema)):
        raise Refusal(f"there is no token {name!r} in force: `milepost token list` shows what there is")
    console().print(f"{visible(name)} is revoked")


async def _make(name: str, roles: list[Role], url: str | None, schema: str | None) -> str:
    async with milepost(url, schema) as mp:
        return await Tokens(mp.log.database, mp.settings["schema"].value).make(name, roles)


async def _list(url: str | None, schema: str | None) -> list[TokenInfo]:
    async with milepost(url, schema, migrate="check") as mp:
        return await Tokens(mp.log.database, mp.settings["schema"].value).all()


async def _revoke(name: str, url: str | None, schema: str | None) -> bool:
    async with milepost(url, schema, migrate="check") as mp:
        return await Tokens(mp.log.database, mp.settings["schema"].value).revoke(name)
