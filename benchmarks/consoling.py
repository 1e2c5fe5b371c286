"""The console with many subscriptions and many parked messages, and what ten open ones cost the database."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from time import perf_counter
from typing import Any

import httpx
import psycopg
from playwright.async_api import async_playwright, expect
from psycopg import sql

from benchmarks.bench import Bench
from benchmarks.contest import Scores
from benchmarks.logs import Log, fresh_log
from benchmarks.messages import STREAMS
from benchmarks.results import Result
from milepost import Message, Milepost

MANY = 500
USUAL = 20
"""Subscriptions."""
PARKED = 100_000
CONSOLES = 10
WATCHED = 10.0
"""How many times `seconds` the open consoles are watched: what they do is little, and told late."""
CHROMIUM = "/usr/bin/chromium"

FIRST_BYTE, USABLE = 0.2, 1.0
"""Seconds, as goals."""
LOAD = 0.01
"""The share of one core's time that the database may spend on them."""

_ROWS = """
insert into {schema}.deliveries
    (subscription, "position", lane, attempts, total, size, revision, since, state, key, reason, error)
select s.id, m."position", m.bucket %% s.lanes, 11, 11, m.size, 1, now(), 'parked', t.name,
       'ValueError: no tax rate', repeat('  File "shop.py", line 7, in invoice' || chr(10), 20)
from {schema}.subscriptions s, {schema}.messages m join {schema}.streams t using (stream_id)
where s.name = 's7'
"""
_ACTIVE = "select active_time from pg_stat_database where datname = current_database()"


def measure(bench: Bench) -> list[Result]:
    """How long pages take, then the load."""
    results = []
    with fresh_log(bench.url, "console", streams=STREAMS, versions=PARKED // STREAMS) as log:
        asyncio.run(_declare(log, MANY))
        _park(log)
        with _served(log) as address:
            results += _pages(bench, address)
            results.append(_load(bench, log, address, MANY))
    with fresh_log(bench.url, "console_usual") as log:
        asyncio.run(_declare(log, USUAL))
        with _served(log) as address:
            results.append(_load(bench, log, address, USUAL))
    return results


async def _declare(log: Log, count: int) -> None:
    mp = Milepost(log.url, schema=log.schema)
    for number in range(count):

        @mp.subscription(f"s{number}", category=f"c{number}", start="now")
        async def handle(message: Message[Any]) -> None: ...

    async with mp:
        pass


def _park(log: Log) -> None:
    with psycopg.connect(log.url, autocommit=True) as connection:
        connection.execute(sql.SQL(_ROWS).format(schema=sql.Identifier(log.schema)), {})
        connection.execute(sql.SQL("vacuum analyze {}").format(log.name("deliveries")))


@contextmanager
def _served(log: Log) -> Iterator[str]:
    """The address of a server in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "serve", "--port", "0"],
        env={**os.environ, "MILEPOST_URL": log.url, "MILEPOST_SCHEMA": log.schema},
        stdout=subprocess.PIPE,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("the server says nothing")
        yield process.stdout.readline().decode().split()[-1]
    finally:
        process.terminate()
        process.communicate()


# Pages


def _pages(bench: Bench, address: str) -> list[Result]:
    pages = {
        f"overview of {MANY} subscriptions": "",
        f"a page of {PARKED:,} parked messages": "/parked/default/s7",
        "one subscription": "/subscriptions/default/s7",
    }
    work = "console"
    rounds = bench.sizes.rounds
    first = Scores(unit="s", fewer_is_better=True)
    bytes_, usable = ({what: Scores(unit="s", fewer_is_better=True) for what in pages} for _ in range(2))
    with httpx.Client(timeout=60) as client, bench.steps(work, 1 + rounds * len(pages)) as step:
        first.add("milepost", _first_byte(client, f"{address}/console"))
        step()
        for _ in range(rounds):
            for what, path in pages.items():
                bytes_[what].add("milepost", _first_byte(client, f"{address}/console{path}"))
                usable[what].add("milepost", asyncio.run(_usable(f"{address}/console{path}")))
                step()
    return [
        first.result(
            f"{work}: overview of {MANY} subscriptions, first byte, the first page of a server", "milepost"
        ),
        *(bytes_[what].result(f"{work}: {what}, first byte", "milepost", below=FIRST_BYTE) for what in pages),
        *(usable[what].result(f"{work}: {what}, usable and live", "milepost", below=USABLE) for what in pages),
    ]


def _first_byte(client: httpx.Client, url: str) -> float:
    begun = perf_counter()
    with client.stream("GET", url) as answer:
        answer.raise_for_status()
        next(answer.iter_raw(1))
        return perf_counter() - begun


async def _usable(url: str) -> float:
    """From the request until the page is drawn, its scripts work, and it follows."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto("about:blank")
        begun = perf_counter()
        await page.goto(url)
        await expect(page.locator("#pulse")).to_have_text("live", timeout=60_000)
        took = perf_counter() - begun
        await browser.close()
        return took


# Load


def _load(bench: Bench, log: Log, address: str, subscriptions: int) -> Result:
    """The share of a core that the database spends on ten open consoles."""
    work = f"console: the database's time for {CONSOLES} open consoles, {subscriptions} subscriptions"
    scores = Scores(unit="s/s", fewer_is_better=True)
    with bench.steps(work, 1) as step:
        scores.add("milepost", asyncio.run(_share(log, address, WATCHED * bench.sizes.seconds)))
        step()
    return scores.result(work, "milepost", below=LOAD)


async def _share(log: Log, address: str, seconds: float) -> float:
    timeout = httpx.Timeout(60)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=timeout))
        open_ = [group.create_task(_watch(client, f"{address}/console")) for _ in range(CONSOLES)]
        # What they cost at first is not what they cost: they stay open for hours.
        await asyncio.sleep(seconds / 2)
        before, begun = await _active(log), perf_counter()
        await asyncio.sleep(seconds)
        share = (await _active(log) - before) / 1000 / (perf_counter() - begun)
        for task in open_:
            task.cancel()
    return share


async def _watch(client: httpx.AsyncClient, url: str) -> None:
    async with client.stream("GET", url, headers={"accept": "text/event-stream"}) as answer:
        async for _ in answer.aiter_raw():
            pass


async def _active(log: Log) -> float:
    """Milliseconds that sessions of the database have worked."""
    async with await psycopg.AsyncConnection.connect(log.url, autocommit=True) as connection:
        row = await (await connection.execute(_ACTIVE)).fetchone()
        return float(row[0]) if row else 0.0
