"""A question before anything that touches many messages."""

import sys
from typing import Annotated

import typer

from milepost.cli.ending import Refusal

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question.")]


def confirm(what: str, yes: bool) -> None:
    """Goes on if a person says so, or has said so beforehand; else nothing is done."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(f"{what}: nobody is there to ask; say --yes")
    if not typer.confirm(f"{what}?", err=True):
        raise Refusal("nothing was done")
