"""The command: starts the PostgreSQL, the shop and the console, shows them, and checks the books at the end."""

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
from milepost.cli.demo import books, couriers
from milepost.cli.demo.departments import open_departments
from milepost.cli.demo.home_made import HomeMade
from milepost.cli.demo.messages import register
from milepost.cli.demo.screen import INTRODUCTION, Scene
from milepost.cli.demo.shop import Shop
from milepost.cli.ending import Refusal
from milepost.cli.options import checked_seconds
from milepost.cli.output import console, visible
from milepost.cli.serve import PORT
from milepost.errors import MilepostError

FOLDER = ".milepost/demo"
SCHEMA = "milepost_demo"
GROUP = "shop"
WITHOUT_TERMINAL = 10.0
"""Seconds that it runs where nobody can press Ctrl-C."""
CATCH_UP = 30.0
"""Seconds for the books to be complete, once the shop is closed."""
LOOK_EVERY = 1.0
"""Seconds between two looks at the subscriptions."""
GRACE = 5.0
"""Seconds for what is under way at the end."""
PORTS = 20
"""So many ports are tried if nobody names one."""
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
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help=f"Of the console. Without it: {PORT}, or the next that is free; 0: any.",
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
    limit = checked_seconds(seconds) if seconds is not None else None if watched else WITHOUT_TERMINAL
    url = f"embedded:{FOLDER}"
    console().print(f"starting PostgreSQL in {embedded.folder_of(url)} …")
    mp = Milepost(url, schema=SCHEMA, group=GROUP, migrate="auto", pool_size=20)
    register(mp)
    open_departments(mp)
    asyncio.run(_run(mp, port, limit, live=watched and not console().is_dumb_terminal))


async def _run(mp: Milepost, port: int | None, seconds: float | None, *, live: bool) -> None:
    url = await asyncio.to_thread(lambda: mp.url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_alone(url))
        listener = _listener(port)
        if listener is not None:
            stack.enter_context(listener)
        await _enter(stack, mp)
        scene = Scene(Shop(mp), couriers.couriers(), HomeMade(), _address(listener))
        stack.enter_context(_warnings_as_events(scene.shop))
        await _play(scene, listener, seconds, live)
        await _summarise(scene)


async def _enter(stack: AsyncExitStack, mp: Milepost) -> None:
    try:
        await stack.enter_async_context(mp)
    except MilepostError as error:
        raise Refusal(f"{error}. To begin anew, remove {FOLDER}") from error


@asynccontextmanager
async def _alone(url: str) -> AsyncIterator[None]:
    """No second demo on the same PostgreSQL."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        row = await (await connection.execute("select pg_try_advisory_lock(%s)", [_LOCK])).fetchone()
        if row != (True,):
            raise Refusal(f"another demo runs in {FOLDER}: end it, or start this one in another folder")
        await books.prepare(connection)
        yield


# The console


def _listener(port: int | None) -> socket | None:
    """Where the console is asked for; None: what it needs is not installed."""
    try:
        from milepost.server import serving
    except ModuleNotFoundError:
        return None
    ports = range(PORT, PORT + PORTS) if port is None else [port]
    for each in ports:
        try:
            return serving.listen("127.0.0.1", each)
        except OSError as error:
            refused = error
    raise Refusal(f"--port {ports[-1]}: {refused.strerror or refused}")


def _address(listener: socket | None) -> str | None:
    return None if listener is None else f"http://127.0.0.1:{listener.getsockname()[1]}"


async def _serve(mp: Milepost, listener: socket | None) -> None:
    """Serves the console until a signal; without one it only waits for that."""
    if listener is None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await stop.wait()
        return
    from milepost.console import Console
    from milepost.server import create_app, serving

    app = create_app(mp, access="local", advertise=_address(listener), pages=Console)
    await serving.serve(app, listener, grace=GRACE)


# The show


class _Events(logging.Handler):
    """Shows the library's warnings where a person looks: in the demo they are part of the story."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(logging.WARNING)
        self._shop = shop

    def emit(self, record: logging.LogRecord) -> None:
        self._shop.tell(record.getMessage().partition("\n")[0])


@contextmanager
def _warnings_as_events(shop: Shop) -> Iterator[None]:
    logger = logging.getLogger("milepost")
    before, logger.handlers = logger.handlers, [_Events(shop)]
    try:
        yield
    finally:
        logger.handlers = before


async def _play(scene: Scene, listener: socket | None, seconds: float | None, live: bool) -> None:
    shop, mp = scene.shop, scene.shop.mp
    if await shop.open():
        shop.tell("the shop opens again, and all go on from where they were")
    await couriers.create(mp)
    async with mp.running(grace=GRACE), asyncio.TaskGroup() as group:
        serving = group.create_task(_serve(mp, listener))
        selling = group.create_task(shop.run())
        others = [group.create_task(courier.run(mp)) for courier in scene.couriers]
        others.append(group.create_task(scene.home_made.run(mp)))
        others.append(group.create_task(_look(scene)))
        others.append(group.create_task(_show_screen(scene) if live else _show_lines(scene)))
        await asyncio.wait([serving], timeout=seconds)
        if not serving.done():
            # As a person would end it.
            signal.raise_signal(signal.SIGINT)
        shop.close()
        await asyncio.wait([selling, serving])
        await _catch_up(mp)
        for task in others:
            task.cancel()


async def _look(scene: Scene) -> None:
    while True:
        found = await scene.shop.mp.subscriptions()
        scene.subscriptions = [info for info in found if info.group == GROUP]
        await asyncio.sleep(LOOK_EVERY)


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
        new = scene.shop.told - shown
        for _, text in list(scene.shop.events)[-new:] if new else ():
            _print(f"      {visible(text)}")
        shown = scene.shop.told
        _print(f"{scene.shop.seconds:3.0f} s {scene.line()}")
        await asyncio.sleep(1)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# The end


async def _catch_up(mp: Milepost) -> None:
    """Waits until every payment is in the books; if they are not, the summary says so."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CATCH_UP):
            while await books.booked(mp) != await books.paid(mp):  # noqa: ASYNC110 - at the end, once
                await asyncio.sleep(0.05)


async def _summarise(scene: Scene) -> None:
    shop, mp = scene.shop, scene.shop.mp
    _print(
        f"\n{shop.appended:,} messages in {shop.seconds:.0f} s, {len(shop.late_positions)} of them committed late "
        f"by a slow checkout; a home-made reader skipped {scene.home_made.skipped(shop.late_positions)} of these."
    )
    booked, paid = await books.booked(mp), await books.paid(mp)
    _print(f"  the log has   {paid.payments:,} payments, {paid.total / 100:,.2f} in all")
    _print(f"  the books have {booked.payments:,} payments, {booked.total / 100:,.2f} in all")
    for info in await mp.subscriptions():
        _print(f"  {info.name:<10} {info.lag.positions:,} behind, {info.retrying} retrying, {info.parked} parked")
    _print(f"Look around: milepost subscriptions --url embedded:{FOLDER} --schema {SCHEMA}")
    if booked != paid:
        raise Refusal("the books are not what the log says: please report this")
