"""The command: starts the PostgreSQL, runs everybody, shows them, and counts at the end."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated

import psycopg
import typer
from psycopg import sql
from rich.live import Live

from milepost import embedded
from milepost.app import Milepost
from milepost.cli.demo.followers import HomeMade, Reader, followers
from milepost.cli.demo.screen import INTRODUCTION, Scene
from milepost.cli.demo.shop import Shop
from milepost.cli.ending import Refusal
from milepost.cli.options import checked_seconds
from milepost.cli.output import console
from milepost.log.statements import in_schema

FOLDER = ".milepost/demo"
SCHEMA = "milepost_demo"
WITHOUT_TERMINAL = 10.0
"""Seconds that it runs where nobody can press Ctrl-C."""
CATCH_UP = 10.0
"""Seconds for followers to come to the end, once the shop is closed."""
_LOCK = 0x64656D6F


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="How long to run. Without it: until Ctrl-C, or 10 s where the output is no terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Shows a shop and its followers live, on a PostgreSQL of the demo's own in ./.milepost/demo.

    Nothing needs to be set up, and nothing of yours is touched. Watch what happens when a transaction
    takes its place in the log early and commits late.

    **Example:** `milepost demo --seconds 30`
    """
    live = sys.stdout.isatty()
    limit = checked_seconds(seconds) if seconds is not None else None if live else WITHOUT_TERMINAL
    url = f"embedded:{FOLDER}"
    console().print(f"starting PostgreSQL in {embedded.folder_of(url)} …")
    mp = Milepost(url, schema=SCHEMA, migrate="auto", pool_size=8)
    asyncio.run(_run(mp, limit, live))


async def _run(mp: Milepost, seconds: float | None, live: bool) -> None:
    url = await asyncio.to_thread(lambda: mp.url)
    async with _alone(url), mp:
        scene = Scene(Shop(mp), followers(), HomeMade())
        with _warnings_as_events(scene.shop):
            await _play(scene, seconds, live)
        await _summarise(scene)


@asynccontextmanager
async def _alone(url: str) -> AsyncIterator[None]:
    """An empty schema, and no second demo that would empty it again."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])).fetchone()
        if row != (True,):
            raise Refusal(f"another demo runs in {FOLDER}: end it, or start this one in another folder")
        await connection.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(SCHEMA)))
        yield


class _Events(logging.Handler):
    """Shows the library's warnings where a person looks: in the demo they are part of the story."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop

    def emit(self, record: logging.LogRecord) -> None:
        self._shop.tell(f"milepost warns: {record.getMessage()}")


@contextmanager
def _warnings_as_events(shop: Shop) -> Iterator[None]:
    logger = logging.getLogger("milepost")
    before, logger.handlers = logger.handlers, [_Events(shop)]
    try:
        yield
    finally:
        logger.handlers = before


async def _play(scene: Scene, seconds: float | None, live: bool) -> None:
    shop, mp = scene.shop, scene.shop.mp
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with asyncio.TaskGroup() as group:
        selling = group.create_task(shop.run())
        others = [group.create_task(follower.run(mp, shop)) for follower in scene.followers]
        others.append(group.create_task(scene.home_made.run(mp)))
        others.append(group.create_task(_show_screen(scene) if live else _show_lines(scene)))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
        shop.close()
        await selling
        await _catch_up(scene)
        for task in others:
            task.cancel()


async def _show_screen(scene: Scene) -> None:
    with Live(scene, console=console(), screen=True, auto_refresh=False) as screen:
        while True:
            screen.refresh()
            await asyncio.sleep(0.1)


async def _show_lines(scene: Scene) -> None:
    told = 0
    _print(INTRODUCTION)
    while True:
        for _, text in scene.shop.events[told:]:
            _print(f"      {text}")
        told = len(scene.shop.events)
        _print(f"{scene.shop.seconds:3.0f} s {scene.line()}")
        await asyncio.sleep(1)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _catch_up(scene: Scene) -> None:
    """Waits until every reader has seen the end; one that cannot is seen in the summary."""
    wanted = await _wanted(scene)
    with suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP):
            for reader in scene.readers:
                while reader.newest < max(wanted[reader.name], default=0):  # noqa: ASYNC110 - at the end, once
                    await asyncio.sleep(0.02)


async def _wanted(scene: Scene) -> dict[str, list[int]]:
    """What each reader should have seen, as the table has it."""
    statement = in_schema(
        """
        select m."position", s.category, m.type
        from :"schema".messages m join :"schema".streams s on s.stream_id = m.stream_id
        order by m."position"
        """,
        SCHEMA,
    )
    rows = await scene.shop.mp.log.database.execute(statement, {})
    return {reader.name: [position for position, *kind in rows if reader.wants(*kind)] for reader in scene.readers}


async def _summarise(scene: Scene) -> None:
    wanted = await _wanted(scene)
    shop = scene.shop
    late = len(shop.late_positions)
    _print(
        f"\n{shop.appended:,} messages in {shop.seconds:.0f} s, {late} of them committed late by a slow checkout."
    )
    for reader in scene.readers:
        _print(f"  {reader.name:<11} saw {_verdict(reader, wanted[reader.name])}")
    _print(f"A message reached a follower {_delays(scene)} after its append returned, unless it had to wait.")
    _print(f"Look around: milepost read --url embedded:{FOLDER} --schema {SCHEMA}")
    if any(reader.positions != wanted[reader.name] for reader in scene.followers):
        raise Refusal("a follower did not see what it should have: please report this")


def _verdict(reader: Reader, wanted: list[int]) -> str:
    seen = f"{len(reader.positions):,} of {len(wanted):,}"
    if reader.positions == wanted:
        return f"{seen}, in order, none skipped"
    missing = sorted(set(wanted) - set(reader.positions))
    named = ", ".join(f"{position:,}" for position in missing[:5])
    return f"{seen}: it skipped {named}{' …' if len(missing) > 5 else ''}"


def _delays(scene: Scene) -> str:
    waits = sorted(wait for follower in scene.followers for wait in follower.waits) or [0.0]
    middle, late = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    return f"{middle * 1000:.1f} ms (99 of 100: {late * 1000:.1f} ms)"
