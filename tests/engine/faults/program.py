"""A program of its own for tests that do it harm: what it does with a message is what the message says."""

import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from engine.faults.book import Book
from milepost import Context, Message, Milepost, Park, Retry, Transaction


class Trouble(Exception):
    """What a handler raises when a message asks for it."""


async def act(message: Message[Any], attempt: int) -> None:
    """Does what a message says: `how`, and for that many attempts; else nothing."""
    wish = message.data or {}
    if attempt > wish.get("attempts", 0):
        await asyncio.sleep(wish.get("takes", 0.001))
        return
    match wish["how"]:
        case "raise":
            raise Trouble("as asked for")
        case "park":
            raise Park("as asked for")
        case "wait":
            await asyncio.Event().wait()
        case "block":
            block(wish)


def block(wish: dict[str, Any]) -> None:
    """What a careless handler does, until a file is there."""
    while not Path(wish["until"]).exists():
        time.sleep(0.02)


def declare_lines(mp: Milepost, book: Book, options: dict[str, Any]) -> None:
    @mp.subscription("lines", category="order", **options)
    async def handle(message: Message[Any], context: Context) -> None:
        with book.entry(message, context.attempt):
            await act(message, context.attempt)


def declare_plain(mp: Milepost, book: Book, options: dict[str, Any]) -> None:
    @mp.subscription("plain", category="order", **options)
    def handle(message: Message[Any], context: Context) -> None:
        with book.entry(message, context.attempt):
            if message.data:
                block(message.data)


def declare_effects(mp: Milepost, book: Book, options: dict[str, Any]) -> None:
    insert = f'insert into "{mp.settings["schema"].value}".effects (stream, version) values (%s, %s)'

    @mp.subscription("effects", category="order", **options)
    async def handle(message: Message[Any], context: Context, tx: Transaction) -> None:
        await tx.execute(insert, (message.stream, message.version))
        await act(message, context.attempt)


def declare_totals(mp: Milepost, book: Book, options: dict[str, Any]) -> None:
    update = f'update "{mp.settings["schema"].value}".totals set n = n + 1'
    waits = options.pop("waits")

    @mp.subscription("totals", category="order", **options)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(update)
        if waits:
            await asyncio.Event().wait()


KINDS = {"lines": declare_lines, "plain": declare_plain, "effects": declare_effects, "totals": declare_totals}


def main(url: str, schema: str, path: str, given: str) -> None:
    """Runs the subscriptions that were asked for, with the options that were."""
    logging.basicConfig(format="%(asctime)s %(process)d %(name)s %(message)s", level=logging.INFO)
    mp = Milepost(url, schema=schema, concurrency=4)
    for name, options in json.loads(given).items():
        retry = Retry(**options.pop("retry", {"delay": 0.05, "factor": 1}))
        KINDS[name](mp, Book(Path(path)), {"retry": retry, **options})
    asyncio.run(mp.run(grace=10))


if __name__ == "__main__":
    main(*sys.argv[1:])
