"""The options that commands share, and the `Milepost` they mean."""

from math import isfinite
from typing import Annotated, Any

import typer

from milepost.app import Milepost
from milepost.cli.ending import Refusal, refusing
from milepost.options import Setting, resolve

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The PostgreSQL: postgresql://…, or embedded for one in ./.milepost. Else MILEPOST_URL.",
        show_default=False,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="NAME",
        help="The schema that holds the log. Else MILEPOST_SCHEMA, else milepost.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program instead.")]


def checked_seconds(seconds: float) -> float:
    """A time that ends, unlike the numbers nan and inf."""
    if not isfinite(seconds):
        raise Refusal(f"--seconds {seconds}: a number is wanted")
    return seconds


def settings(url: str | None, schema: str | None) -> dict[str, Setting]:
    """Every option with its value and its source."""
    with refusing():
        return resolve({"url": url, "schema": schema})


def milepost(url: str | None, schema: str | None, **options: Any) -> Milepost:
    """The `Milepost` that the options and the environment mean; not opened yet."""
    address(url, schema)
    return Milepost(url, schema=schema, **options)


def address(url: str | None, schema: str | None) -> str:
    """The address as it was given; there has to be one."""
    given: str | None = settings(url, schema)["url"].value
    if given is None:
        raise Refusal("no database: give --url postgresql://…, or --url embedded, or set MILEPOST_URL")
    return given
