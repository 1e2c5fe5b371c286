"""`milepost demo`: start PostgreSQL, the shop and the console, show them, and check the books at the end."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from socket import socket
from typing import Annotated

import psycopg
import typer
from rich.live import Live

from milepost import embedded
from milepost.app import Milepost
from milepost.cli.demo import subscribers
from milepost.cli.demo.screen import INTRODUCTION, Scene
from milepost.cli.demo.shop import Shop, register_messages
from milepost.cli.demo.subscribers import NaiveReader, PaymentSum, ShopConnection, declare_departments
from milepost.cli.exit_status import CommandError
from milepost.cli.options import DEFAULT_PORT, check_seconds
from milepost.cli.output import console, visible
from milepost.errors import MilepostError

FOLDER = ".milepost/demo"
SCHEMA = "milepost_demo"
GROUP = "shop"
WITHOUT_TERMINAL_SECONDS = 10.0
"""Seconds that it runs without a terminal, where no Ctrl-C can end it."""
CATCH_UP_SECONDS = 30.0
"""Seconds for the books to be complete, once the shop is closed."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the subscriptions."""
GRACE_SECONDS = 5.0
"""Seconds for what is under way at the end."""
MAX_PORTS_TRIED = 20
"""Ports that are tried without `--port`."""
_LOCK_KEY = 0x64656D6F


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="How long to run. Without it: until Ctrl-C, or 10 s where the output is no terminal.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help=f"Of the console. Without it: {DEFAULT_PORT}, or the next that is free; 0: any.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Shows a shop live: in the console, at the address it prints, and here in the terminal.

    It runs on a PostgreSQL of its own in ./.milepost/demo. Nothing needs to be set up, and nothing of yours is
    touched. The next start goes on where the last one ended; remove the folder to begin anew.

    **Example:** `milepost demo --seconds 30`
    """
    watched = sys.stdout.isatty()
    limit = (
        check_seconds("--seconds", seconds)
        if seconds is not None
        else None
        if watched
        else WITHOUT_TERMINAL_SECONDS
    )
    url = f"embedded:{FOLDER}"
    console().print(f"starting PostgreSQL in {embedded.folder_of(url)} …")
    mp = Milepost(url, schema=SCHEMA, group=GROUP, migrate="auto", pool_size=20)
    register_messages(mp)
    declare_departments(mp)
    asyncio.run(_run(mp, port, limit, live=watched and not console().is_dumb_terminal))


async def _run(mp: Milepost, port: int | None, seconds: float | None, *, live: bool) -> None:
    url = await asyncio.to_thread(lambda: mp.url)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(_locked(url))
        listener = _listen(port)
        if listener is not None:
            stack.enter_context(listener)
        await _open_milepost(stack, mp)
        scene = Scene(Shop(mp), subscribers.new_couriers(), NaiveReader(), _address(listener))
        stack.enter_context(_warnings_to_shop(scene.shop))
        await _play(scene, connection, listener, seconds, live)
        await _summarise(scene, connection)


async def _open_milepost(stack: AsyncExitStack, mp: Milepost) -> None:
    try:
        await stack.enter_async_context(mp)
    except MilepostError as error:
        raise CommandError(f"{error}. To begin anew, remove {FOLDER}") from error


@asynccontextmanager
async def _locked(url: str) -> AsyncIterator[ShopConnection]:
    """Hold the lock that keeps a second demo off the same PostgreSQL, on a connection of the shop's own."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK_KEY])).fetchone()
        if row != (True,):
            raise CommandError(f"another demo runs in {FOLDER}: end it, or start this one in another folder")
        await subscribers.create_revenue_table(connection)
        yield connection


# The console


def _listen(port: int | None) -> socket | None:
    """Open the socket of the console. Return None if what it needs is not installed."""
    try:
        from milepost.server import process
    except ModuleNotFoundError:
        return None
    ports = range(DEFAULT_PORT, DEFAULT_PORT + MAX_PORTS_TRIED) if port is None else [port]
    for each in ports:
        try:
            return process.listen("127.0.0.1", each)
        except OSError as error:
            refused = error
    raise CommandError(f"--port {ports[-1]}: {refused.strerror or refused}")


def _address(listener: socket | None) -> str | None:
    return None if listener is None else f"http://127.0.0.1:{listener.getsockname()[1]}"


async def _serve(mp: Milepost, listener: socket | None) -> None:
    """Serve the console until a signal. Without a socket, only wait for the signal."""
    if listener is None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        return
    from milepost.console import Console
    from milepost.server import create_app, process

    app = create_app(mp, access="local", advertise=_address(listener), pages=Console)
    await process.serve(app, listener, grace=GRACE_SECONDS)


# The show


class _WarningsToShop(logging.Handler):
    """A log handler that notes the library's warnings as events of the shop: they are part of the story."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(logging.WARNING)
        self._shop = shop

    def emit(self, record: logging.LogRecord) -> None:
        self._shop.note(record.getMessage().partition("\n")[0])


@contextmanager
def _warnings_to_shop(shop: Shop) -> Iterator[None]:
    logger = logging.getLogger("milepost")
    before, logger.handlers = logger.handlers, [_WarningsToShop(shop)]
    try:
        yield
    finally:
        logger.handlers = before


async def _play(
    scene: Scene, connection: ShopConnection, listener: socket | None, seconds: float | None, live: bool
) -> None:
    shop, mp = scene.shop, scene.shop.mp
    if await shop.open():
        shop.note("the shop opens again, and all go on from where they were")
    await subscribers.create_shipping(mp)
    async with mp.running(grace=GRACE_SECONDS), asyncio.TaskGroup() as group:
        serving = group.create_task(_serve(mp, listener))
        selling = group.create_task(shop.run())
        others = [group.create_task(courier.run(mp)) for courier in scene.couriers]
        others.append(group.create_task(scene.naive_reader.run(mp)))
        others.append(group.create_task(_poll_subscriptions(scene)))
        others.append(group.create_task(_show_screen(scene) if live else _show_lines(scene)))
        await asyncio.wait([serving], timeout=seconds)
        if not serving.done():
            # As a person would end it.
            signal.raise_signal(signal.SIGINT)
        shop.close()
        await asyncio.wait([selling, serving])
        await _catch_up(connection)
        for task in others:
            task.cancel()


async def _poll_subscriptions(scene: Scene) -> None:
    while True:
        found = await scene.shop.mp.subscriptions()
        scene.subscriptions = [info for info in found if info.group == GROUP]
        await asyncio.sleep(POLL_SECONDS)


async def _show_screen(scene: Scene) -> None:
    with Live(scene, console=console(), screen=True, auto_refresh=False) as screen:
        while True:
            screen.refresh()
            await asyncio.sleep(0.2)


async def _show_lines(scene: Scene) -> None:
    shown = 0
    _print(INTRODUCTION)
    _print(f"open {scene.address}" if scene.address else "without a console: it needs milepost[server]")
    while True:
        new = scene.shop.noted - shown
        for _, text in list(scene.shop.events)[-new:] if new else ():
            _print(f"      {visible(text)}")
        shown = scene.shop.noted
        _print(f"{scene.shop.seconds:3.0f} s {scene.line()}")
        await asyncio.sleep(1)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# The end


async def _catch_up(connection: ShopConnection) -> None:
    """Wait until every payment is in the books. If they never are, the summary says so."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP_SECONDS):
            while True:
                booked, paid = await _read_books(connection)
                if booked == paid:
                    return
                await asyncio.sleep(0.05)


async def _read_books(connection: ShopConnection) -> tuple[PaymentSum, PaymentSum]:
    """What the subscription has written, and what the log says."""
    booked = await subscribers.booked_payments(connection)
    return booked, await subscribers.logged_payments(connection, SCHEMA)


async def _summarise(scene: Scene, connection: ShopConnection) -> None:
    shop, mp = scene.shop, scene.shop.mp
    skipped = scene.naive_reader.skipped(shop.late_positions)
    _print(
        f"\n{shop.appended:,} messages in {shop.seconds:.0f} s, {len(shop.late_positions)} of them committed late "
        f"by a slow checkout; a home-made reader skipped {skipped} of these."
    )
    booked, paid = await _read_books(connection)
    _print(f"  the log has   {paid.payments:,} payments, {paid.total / 100:,.2f} in all")
    _print(f"  the books have {booked.payments:,} payments, {booked.total / 100:,.2f} in all")
    for info in await mp.subscriptions():
        _print(f"  {info.name:<10} {info.lag.positions:,} behind, {info.retrying} retrying, {info.parked} parked")
    _print(f"Look around: milepost subscriptions --url embedded:{FOLDER} --schema {SCHEMA}")
    if booked != paid:
        raise CommandError("the books are not what the log says: please report this")
