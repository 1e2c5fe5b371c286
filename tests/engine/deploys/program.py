"""A program of which tests run several versions at a time: what a handler does is what the message says."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from engine.deploys.record import Record
from engine.deploys.version import Version
from milepost import (
    AdvisoryLeases,
    Context,
    Message,
    Milepost,
    Park,
    PostgresLeases,
    Retry,
    Transaction,
    by_function,
    by_property,
)
from milepost.engine.handlers import host
from milepost.engine.handlers.registrar import SubscriptionRegistrar
from milepost.engine.lanes import balancer
from milepost.postgres import schema as schemas


class Trouble(Exception):
    """What a handler raises when a message asks for it."""


class Wish(msgspec.Struct):
    """What is to be done with a message."""

    takes: float | None = None
    fails: int = 0
    """For so many attempts."""
    parks: bool = False


class A(Wish): ...


class B(Wish): ...


class C(Wish): ...


TYPES: dict[str, type[Wish]] = {"a": A, "b": B, "c": C}


def of_property(message: Message[Any]) -> int:
    return int(message.properties["key"])


def order_of(text: str) -> Any:
    if text.startswith("function"):
        return by_function(of_property, version=int(text.removeprefix("function ")))
    return {"stream": "stream", "none": None, "property": by_property("key")}[text]


class Handling:
    """What all handlers of a version do."""

    def __init__(self, version: Version, record: Record, schema: str) -> None:
        self._version = version
        self._record = record
        self._insert = f'insert into "{schema}".effects ("position", version) values (%s, %s)'

    async def handle(self, message: Message[Any], context: Context) -> None:
        with self._record.entry(self._version.label, message, context.attempt, replay=context.replay):
            wish: Wish = message.data
            obeys = self._version.fails
            await asyncio.sleep(wish.takes if obeys and wish.takes is not None else self._version.takes)
            if obeys and wish.parks:
                raise Park("as asked for")
            if obeys and context.attempt <= wish.fails:
                raise Trouble("as asked for")

    async def write(self, message: Message[Any], context: Context, tx: Transaction) -> None:
        await tx.execute(self._insert, (message.position, self._version.label))
        await self.handle(message, context)


def declare(mp: Milepost, version: Version, handling: Handling) -> None:
    subscription = mp.subscription(
        version.name,
        category="s",
        where=version.where,
        ordered_by=order_of(version.orders),
        lanes=version.lanes,
        lease=version.lease,
        window=version.window,
        retry=Retry(delay=version.delay, factor=1, jitter=0),
        renamed_from=version.renamed_from,
    )
    if version.types is not None:
        for name in version.types:
            declare_type(subscription, TYPES[name], handling)
    elif version.exactly_once:

        @subscription
        async def write(message: Message[Any], context: Context, tx: Transaction) -> None:
            await handling.write(message, context, tx)

    else:

        @subscription
        async def handle(message: Message[Any], context: Context) -> None:
            await handling.handle(message, context)


def declare_type(subscription: Any, payload: type[Wish], handling: Handling) -> None:
    async def handle(message: Any, context: Context) -> None:
        await handling.handle(message, context)

    handle.__annotations__["message"] = Message[payload]  # type: ignore[valid-type]
    subscription.on(handle)


def learn_migrations(count: int, *, breaking: bool) -> None:
    """Is a later Milepost, whose schema has come further."""
    for _ in range(count):
        number = schemas.NEWEST_MIGRATION_NUMBER + 1
        oldest = number if breaking else 1
        added = schemas.Migration(number, "later", oldest, f'create table :"schema".later_{number} (n integer);')
        schemas.MIGRATIONS, schemas.NEWEST_MIGRATION_NUMBER = (*schemas.MIGRATIONS, added), number


def ask_often(folder: Path) -> None:
    """Asks again and again whether newer programs have ended, and notes that it did."""
    balancer.BALANCE_SECONDS = host.REDECLARE_SECONDS = 0.2
    again = SubscriptionRegistrar.again

    async def noted(declaring: SubscriptionRegistrar, *given: Any) -> Any:
        with (folder / f"asked-{os.getpid()}").open("a") as file:
            file.write(".")
        return await again(declaring, *given)

    SubscriptionRegistrar.again = noted  # type: ignore[method-assign,assignment]


def main(url: str, schema: str, folder: str, given: str) -> None:
    version = msgspec.json.decode(given, type=Version)
    learn_migrations(version.migrations, breaking=version.breaking)
    if version.asks_often:
        ask_often(Path(folder))
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    mp = Milepost(
        url,
        schema=schema,
        concurrency=8,
        progress=version.progress,
        leases=AdvisoryLeases() if version.leases == "advisory" else PostgresLeases(),
    )
    for name, payload in TYPES.items():
        mp.message(name)(payload)
    declare(mp, version, Handling(version, Record(Path(folder) / "record"), schema))
    if version.beside:
        second = version.but(f"{version.label}-{version.beside}", name=version.beside, renamed_from=None)
        declare(mp, second, Handling(second, Record(Path(folder) / "record"), schema))
    if version.other:

        @mp.subscription("others", category="other")
        def handle_other(message: Message[Any]) -> None:
            Path(folder, f"other-{message.position}").touch()

    asyncio.run(mp.run(grace=version.grace))


if __name__ == "__main__":
    main(*sys.argv[1:])
