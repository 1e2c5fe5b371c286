"""`milepost read`: what is in the log, and what arrives in it."""

import asyncio
import os
import re
import stat
import sys
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from milepost.app import Milepost
from milepost.cli import loop
from milepost.cli.ending import Refusal, say
from milepost.cli.moment import moment
from milepost.cli.options import Json, Schema, Url, milepost, settings
from milepost.cli.printer import Printer
from milepost.cli.progress import ProgressBar
from milepost.log import schema as log_schema
from milepost.log.database import Database
from milepost.log.feed import NOW, Now
from milepost.log.message import Message
from milepost.log.reader import END

LOOK_AGAIN = 0.5
"""Seconds between two looks for a log that is not there yet."""


def read(
    stream: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM", help="Only these streams.", show_default=False)
    ] = None,
    category: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this category. Repeat it for any of several.", show_default=False),
    ] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE",
            help="Only this type; * is one dotted part, > is the rest. Repeat it for any of several.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="FILTER",
            help="Only messages whose properties this filter accepts, such as 'amount >= 100'.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str, typer.Option(metavar="POSITION", help="Only what stands after this position; now: only what is new.")
    ] = "0",
    after_version: Annotated[
        int, typer.Option(metavar="VERSION", min=0, help="Only later versions; for one stream.")
    ] = 0,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only what is not older: 2026-03-01, 2026-03-01T12:00:00Z, or 90s, 15m, 3h, 2d ago.",
            show_default=False,
        ),
    ] = None,
    backwards: Annotated[bool, typer.Option("--backwards", help="The newest first.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="At most so many. Without it: all.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what arrives, until Ctrl-C or the limit.")
    ] = False,
    as_json: Json = False,
    url: Url = None,
    schema: Schema = None,
) -> None:
    """Prints messages, the oldest first, and ends; with --follow it waits for more.

    **The last ten:** `milepost read --backwards --limit 10`

    **Live:** `milepost read --type 'payment.*' --follow --after now`

    **A copy:** `milepost read --json --url $OLD | milepost append --url $NEW`

    Different options all have to hold; a repeated one means any of its values. With --json each line is a
    message that `milepost append` understands.
    """
    if follow and backwards:
        raise Refusal("--follow and --backwards exclude each other: what arrives is newer than everything")
    if after_version and (stream is None or len(stream) != 1):
        raise Refusal("--after-version is for one stream: name it")
    ask = Ask(
        stream=stream[0] if stream is not None and len(stream) == 1 else stream or None,
        category=category or None,
        types=type or None,
        where=where,
        after=position(after),
        after_version=min(after_version, END),
        since=None if since is None else moment("--since", since),
        backwards=backwards,
        limit=None if limit is None else min(limit, END),
    )
    mp = milepost(url, schema, migrate=_careful(url, schema))
    loop.run(_follow(mp, ask, as_json) if follow else _read(mp, ask, as_json))


@dataclass(frozen=True)
class Ask:
    """What is to be printed."""

    stream: str | list[str] | None
    category: list[str] | None
    types: list[str] | None
    where: str | None
    after: int | Now
    after_version: int
    since: datetime | None
    backwards: bool
    limit: int | None

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments that `mp.read` and `mp.follow` share."""
        return {"stream": self.stream, "category": self.category, "types": self.types, "where": self.where}

    def wants(self, message: Message[Any]) -> bool:
        """The conditions that following does not know."""
        return message.version > self.after_version and (self.since is None or message.time >= self.since)


def position(text: str) -> int | Now:
    """The position that a word means."""
    if text == "now":
        return NOW
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise Refusal(f"--after {text!r}: a position or now is wanted")
    return int(text)


def _careful(url: str | None, schema: str | None) -> log_schema.Migrate:
    """Who only reads changes no schema, unless the environment asks for it."""
    setting = settings(url, schema)["migrate"]
    migrate: log_schema.Migrate = "check" if setting.source == "default" else setting.value
    return migrate


async def _read(mp: Milepost, ask: Ask, as_json: bool) -> None:
    if isinstance(ask.after, Now):
        raise Refusal("--after now goes with --follow: nothing that is there already is new")
    printer = Printer(as_json)
    async with mp:
        head = None if isinstance(ask.stream, str) else await mp.head()
        with progress_of_copy(head) as progress:
            pages = mp.read_pages(
                **ask.selection,
                after=ask.after,
                after_version=ask.after_version,
                since=ask.since,
                backwards=ask.backwards,
                limit=ask.limit,
            )
            async for page in pages:
                printer.print(page)
                progress.advance_to(page[-1].position, f"position {page[-1].position:,}")


async def _follow(mp: Milepost, ask: Ask, as_json: bool) -> None:
    printer = Printer(as_json)
    left = ask.limit
    await _wait_for_log(mp)
    async with mp, aclosing(mp.follow_pages(**ask.selection, after=await _start(mp, ask))) as pages:
        while left != 0:
            page = [message for message in await anext(pages) if ask.wants(message)][:left]
            printer.print(page)
            sys.stdout.flush()
            left = None if left is None else left - len(page)


async def _start(mp: Milepost, ask: Ask) -> int | Now:
    """Where to begin, so that nothing of the wanted time is missed: at the horizon or before it."""
    if ask.since is None or isinstance(ask.after, Now):
        return ask.after
    head = await mp.head()
    rows = await mp.log.database.execute(mp.log.statements.get("position_before"), {"since": ask.since})
    return max(ask.after, min(head, int(rows[0][0])))


async def _wait_for_log(mp: Milepost) -> None:
    """A follower may come before the first append."""
    name = mp.settings["schema"].value
    said = False
    while mp.settings["migrate"].value == "check":
        connection = await Database(await asyncio.to_thread(lambda: mp.url), pool_size=1).connect()
        async with connection:
            if (await log_schema.status(connection, name)).number:
                return
        if not said:
            say(f"schema {name!r} has no log yet: waiting for the first append, or `milepost schema migrate`")
        said = True
        await asyncio.sleep(LOOK_AGAIN)


def progress_of_copy(head: int | None) -> ProgressBar:
    """A bar for what goes to a file; on a terminal, and before a pager, the messages are all there is to see."""
    try:
        to_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        to_file = False
    return ProgressBar("reading", head, shown=to_file)
