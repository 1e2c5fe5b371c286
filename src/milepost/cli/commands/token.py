"""`milepost token`: make, list and revoke the tokens that the server asks for."""

from typing import Annotated, Any

import typer

from milepost.cli import signals
from milepost.cli.exit_status import CommandError, print_note
from milepost.cli.options import Json, Schema, Url, make_milepost, parse_expiry
from milepost.cli.output import console, new_table, print_json, print_table, visible
from milepost.server.access.permissions import TokenRole
from milepost.server.access.tokens import TokenInfo, TokenStore

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

TokenName = Annotated[
    str, typer.Argument(metavar="NAME", help="What the token is for, such as the program that has it.")
]


@app.callback()
def token() -> None:
    """Makes, lists and revokes tokens: what `milepost serve` asks for on any address but this machine's."""


@app.command()
def make(
    name: TokenName,
    role: Annotated[
        list[TokenRole],
        typer.Option(
            help="What it allows; can be repeated. read: look at everything; append; consume: take and settle "
            "deliveries; operate: change subscriptions, retry and skip messages."
        ),
    ],
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP",
            help="Only for subscriptions of this group; can be repeated. Otherwise for all groups.",
            show_default=False,
        ),
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CATEGORY",
            help="Only for streams of this category, and for subscriptions that select no other; can be repeated. "
            "Otherwise for all categories.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="When it ends by itself, by the database's clock: after 12h, 30d, 8w, or at a date or time such "
            "as 2026-12-31. Otherwise it lasts until it is revoked.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Makes a token and prints it, this once: only a hash of it is stored.

    **Example:** `milepost token make shop --role append --role read --category order --expires 90d`
    """
    ends = None if expires is None else parse_expiry("--expires", expires)
    wanted = {"expires": ends, "groups": group or None, "categories": category or None}
    secret, made = signals.run_async(_make(name, role, wanted, url, schema))
    if as_json:
        told = {field: getattr(made, field) for field in ("name", "roles", "groups", "categories", "expires")}
        print_json({**told, "token": secret})
        return
    typer.echo(secret)
    print_note("keep it: it is not shown again")


@app.command("list")
def list_(as_json: Json = False, url: Url = None, schema: Schema = None) -> None:
    """Lists every token that was made: what it allows and until when, when it was last used, if it is revoked."""
    found = signals.run_async(_list(url, schema))
    if as_json:
        print_json(found)
        return
    rows = new_table("name", "roles", "groups", "categories", "created", "expires", "last used", "revoked")
    for each in found:
        times = (
            f"{at.astimezone():%Y-%m-%d %H:%M}" if at else ""
            for at in (each.created, each.expires, each.last_used, each.revoked)
        )
        scope = ("all" if names is None else visible(", ".join(names)) for names in (each.groups, each.categories))
        rows.add_row(
            visible(each.name), " ".join(each.roles), *scope, *times, style=None if each.in_force else "dim"
        )
    print_table(rows)


@app.command()
def revoke(name: TokenName, url: Url = None, schema: Schema = None) -> None:
    """Revokes a token: within seconds it opens nothing any more, on every server."""
    if not signals.run_async(_revoke(name, url, schema)):
        raise CommandError(f"there is no token {name!r} in force: `milepost token list` shows what there is")
    console().print(f"{visible(name)} is revoked")


async def _make(
    name: str, roles: list[TokenRole], wanted: dict[str, Any], url: str | None, schema: str | None
) -> tuple[str, TokenInfo]:
    async with make_milepost(url, schema) as mp:
        tokens = TokenStore(mp)
        secret = await tokens.make(name, roles, **wanted)
        return secret, [token for token in await tokens.all() if token.name == name][-1]


async def _list(url: str | None, schema: str | None) -> list[TokenInfo]:
    async with make_milepost(url, schema, migrate="check") as mp:
        return await TokenStore(mp).all()


async def _revoke(name: str, url: str | None, schema: str | None) -> bool:
    async with make_milepost(url, schema, migrate="check") as mp:
        return await TokenStore(mp).revoke(name)
