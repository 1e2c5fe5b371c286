"""`milepost read`: print what is in the log, and follow what arrives in it."""

import asyncio
import os
import re
import stat
import sys
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from milepost.app import Milepost
from milepost.cli import signals
from milepost.cli.exit_status import CommandError, print_note
from milepost.cli.options import Json, Schema, Url, make_milepost, parse_time, resolve_settings
from milepost.cli.output import MessagePrinter, ProgressBar
from milepost.engine.services import open_log
from milepost.log.message import Message
from milepost.log.query import NOW, Now
from milepost.names import MAX_POSITION_NUMBER, MigrateMode

LOG_POLL_SECONDS = 0.5
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
        str,
        typer.Option(metavar="POSITION", help="Only what stands after this position; now: only what is new."),
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
        raise CommandError("--follow and --backwards exclude each other: what arrives is newer than everything")
    if after_version and (stream is None or len(stream) != 1):
        raise CommandError("--after-version is for one stream: name it")
    ask = ReadOptions(
        stream=stream[0] if stream is not None and len(stream) == 1 else stream or None,
        category=category or None,
        types=type or None,
        where=where,
        after=parse_position(after),
        after_version=min(after_version, MAX_POSITION_NUMBER),
        since=None if since is None else parse_time("--since", since),
        backwards=backwards,
        limit=None if limit is None else min(limit, MAX_POSITION_NUMBER),
    )
    mp = make_milepost(url, schema, migrate=_migrate_setting(url, schema))
    signals.run_async(_follow(mp, ask, as_json) if follow else _read(mp, ask, as_json))


@dataclass(frozen=True)
class ReadOptions:
    """The options of `milepost read`."""

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
        """Return True if a message fits the options that `follow` does not have."""
        return message.version > self.after_version and (self.since is None or message.time >= self.since)


def parse_position(text: str) -> int | Now:
    """Return the position that a word means."""
    if text == "now":
        return NOW
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise CommandError(f"--after {text!r}: a position or now is wanted")
    return int(text)


def _migrate_setting(url: str | None, schema: str | None) -> MigrateMode:
    """Return "check", since reading changes no schema, unless the environment asks for more."""
    setting = resolve_settings(url, schema)["migrate"]
    migrate: MigrateMode = "check" if setting.source == "default" else setting.value
    return migrate


async def _read(mp: Milepost, ask: ReadOptions, as_json: bool) -> None:
    if isinstance(ask.after, Now):
        raise CommandError("--after now goes with --follow: nothing that is there already is new")
    printer = MessagePrinter(as_json)
    async with mp:
        head = None if isinstance(ask.stream, str) else await mp.head()
        with copy_progress(head) as progress:
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


async def _follow(mp: Milepost, ask: ReadOptions, as_json: bool) -> None:
    printer = MessagePrinter(as_json)
    left = ask.limit
    await _wait_for_log(mp)
    async with mp, aclosing(mp.follow_pages(**ask.selection, after=await _start_position(mp, ask))) as pages:
        while left != 0:
            page = [message for message in await anext(pages) if ask.wants(message)][:left]
            printer.print(page)
            sys.stdout.flush()
            left = None if left is None else left - len(page)


async def _start_position(mp: Milepost, ask: ReadOptions) -> int | Now:
    """Return the position to begin after, so that nothing of the wanted time is missed."""
    if ask.since is None or isinstance(ask.after, Now):
        return ask.after
    head = await mp.head()
    return max(ask.after, min(head, await mp.log.position_before(ask.since)))


async def _wait_for_log(mp: Milepost) -> None:
    """Wait until the schema has a log: a follower may start before the first append."""
    if mp.settings["migrate"].value != "check":
        return
    name = mp.settings["schema"].value
    said = False
    url = await asyncio.to_thread(lambda: mp.url)
    # The log alone: progress in another database need not be reachable for this.
    log = await open_log(url, name, mp.codec, migrate="off", pool_size=1)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(log.close)
        while not (await log.schema_status()).number:
            if not said:
                print_note(
                    f"schema {name!r} has no log yet: waiting for the first append, or `milepost schema migrate`"
                )
            said = True
            await asyncio.sleep(LOG_POLL_SECONDS)


def copy_progress(head: int | None) -> ProgressBar:
    """Return a bar that is shown if the output is a file. On a terminal, and before a pager, it would disturb."""
    try:
        to_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        to_file = False
    return ProgressBar("reading", head, shown=to_file)
