"""Workers, PostgreSQL and connections die at random, and handlers fail at random: what holds at the end."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psycopg

from engine.faults import effects
from engine.faults.book import first_occurrences
from engine.faults.chance import seeded
from engine.faults.crew import Crew, Worker, crew, until
from engine.faults.load import Load
from engine.faults.proxy import Fate, Proxy, is_commit
from engine.faults.watch import watching
from milepost import Milepost, Unavailable
from patience import within
from servers import Server
from support import Connection, qualified, rows_by_state

WORKERS = 2
LEASE = 1.0
PAUSE = 0.4
"""Seconds between two misfortunes."""
OPTIONS = {
    "lanes": 4,
    "lease": LEASE,
    "timeout": 0.3,
    "retry": {"attempts": 100, "delay": 0.05, "factor": 1},
}
PARKS = {"how": "park", "attempts": 10**6}

Parked = set[tuple[str, str, int]]
"""Subscription, stream and version of what was given up."""


def wish(chance: random.Random) -> Any:
    """What a handler is to do with a message: most of the time, to handle it."""
    number = chance.random()
    if number < 0.85:
        return None
    if number < 0.93:
        return {"how": "raise", "attempts": chance.randint(1, 3)}
    if number < 0.94:
        return {"how": "wait", "attempts": 1}
    return PARKS if number < 0.95 else {"takes": 0.05}


class Misfortune:
    """What happens to a deployment."""

    def __init__(self, server: Server, proxy: Proxy, workers: Crew, chance: random.Random) -> None:
        self._server = server
        self._proxy = proxy
        self._workers = workers
        self._chance = chance
        self._stopped: set[Worker] = set()

    async def strike_for(self, seconds: float) -> None:
        """One misfortune after the other, and then none any more."""
        strikes: list[Callable[[], Awaitable[None]]] = [
            *[self._kill, self._stop, self._deploy, self._cut, self._lose_commits, self._end_session] * 2,
            *[self._crash, self._restart],
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._replace()
            await asyncio.sleep(self._chance.random() * 2 * PAUSE)
            await self._chance.choice(strikes)()
        self._proxy.rule = lambda frame: Fate.PASSES
        for worker in self._stopped:
            worker.send_signal(signal.SIGCONT)

    def _replace(self) -> None:
        while len(self._workers.alive) < WORKERS:
            self._workers.start()

    async def _kill(self) -> None:
        self._one().kill()

    async def _stop(self) -> None:
        """Stops a process, and one that was stopped before goes on."""
        for worker in self._stopped:
            worker.send_signal(signal.SIGCONT)
        self._stopped = {self._one()}
        for worker in self._stopped:
            worker.send_signal(signal.SIGSTOP)

    async def _deploy(self) -> None:
        self._one().send_signal(signal.SIGTERM)

    async def _cut(self) -> None:
        self._proxy.cut(self._chance)

    async def _lose_commits(self) -> None:
        """From now on, or no more."""
        fates = [Fate.LOSES_ITS_ANSWER, Fate.IS_LOST, *[Fate.PASSES] * self._chance.choice([2, 1000])]
        self._proxy.rule = lambda frame: self._chance.choice(fates) if is_commit(frame) else Fate.PASSES

    async def _end_session(self) -> None:
        statement = (
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'milepost' order by random() limit 1"
        )
        with suppress(psycopg.OperationalError):
            async with await Connection.connect(self._server.url(), autocommit=True) as admin:
                await admin.execute(statement)

    async def _crash(self) -> None:
        await asyncio.to_thread(self._server.crash)

    async def _restart(self) -> None:
        await asyncio.to_thread(self._server.stop)
        await asyncio.to_thread(self._server.start)

    def _one(self) -> Worker:
        alive = self._workers.alive
        return self._chance.choice(alive) if alive else self._workers.start()


class Verdict:
    """What has to hold in the end. `lines` goes on after a parked message, `effects` holds its key."""

    def __init__(self, load: Load) -> None:
        self.lines: dict[str, list[int]] = {}
        self.effects: dict[str, list[int]] = {}
        self.parked: Parked = set()
        for stream, wishes in load.wishes.items():
            parked = [version for version, wish in enumerate(wishes, 1) if wish == PARKS]
            before = parked[0] if parked else len(wishes) + 1
            self.lines[stream] = [version for version in range(1, len(wishes) + 1) if version not in parked]
            self.effects[stream] = list(range(1, before))
            self.parked |= {("lines", stream, version) for version in parked}
            self.parked |= {("effects", stream, version) for version in parked[:1]}

    async def is_reached(self, mp: Milepost, workers: Crew) -> bool:
        """Whether everything is handled or parked."""
        return (
            workers.book.count() >= _total(self.lines)
            and await effects.count(mp) >= _total(self.effects)
            and await parked(mp) >= self.parked
        )

    async def missing(self, mp: Milepost, workers: Crew) -> str:
        """What is not handled or parked yet."""
        handled, took_effect = workers.book.handled(), await effects.in_order(mp)
        return "\n".join(
            [
                f"lines without {_missing(self.lines, handled)}",
                f"effects without {_missing(self.effects, took_effect)}",
                f"not parked: {self.parked - await parked(mp)}; rows {await rows_by_state(mp)}",
                repr(workers),
            ]
        )

    async def check(self, mp: Milepost, workers: Crew) -> None:
        """Nothing was lost, nothing was parked that could be handled, each took effect once, in order."""
        handled, took_effect = workers.book.handled(), await effects.in_order(mp)
        for stream, wanted in self.lines.items():
            assert deviation(first_occurrences(handled[stream]), wanted) is None, f"lines, {stream}"
        for stream, wanted in self.effects.items():
            assert deviation(took_effect[stream], wanted) is None, f"effects, {stream}"
        assert await parked(mp) == self.parked


def deviation(found: Sequence[int], wanted: Sequence[int]) -> tuple[Sequence[int], Sequence[int]] | None:
    """The first few versions from where on two orders differ, if they do."""
    for place, (one, other) in enumerate(zip_longest(found, wanted)):
        if one != other:
            return found[max(0, place - 2) : place + 5], wanted[max(0, place - 2) : place + 5]
    return None


def _missing(wanted: dict[str, list[int]], found: dict[str, list[int]]) -> dict[str, list[int]]:
    lacking = {stream: sorted(set(versions) - set(found[stream])) for stream, versions in wanted.items()}
    return {stream: versions for stream, versions in lacking.items() if versions}


def _total(versions: dict[str, list[int]]) -> int:
    return sum(map(len, versions.values()))


async def parked(mp: Milepost) -> Parked:
    """What is given up."""
    statement = (
        "select s.name, st.name, m.version from {0}.deliveries d "
        "join {0}.subscriptions s on s.id = d.subscription "
        'join {0}.messages m on m."position" = d."position" join {0}.streams st using (stream_id) '
        "where d.state = 'parked'"
    )
    rows = await mp.log.database.execute(qualified(statement, mp), {})
    return {(name, stream, version) for name, stream, version in rows}


async def append_until(load: Load, chance: random.Random, over: asyncio.Event) -> None:
    """Appends all the time, over every outage."""
    while not over.is_set():
        await load.append(data=wish(chance))
        await asyncio.sleep(chance.random() * 0.01)


async def until_reached(verdict: Verdict, mp: Milepost, workers: Crew) -> None:
    """Waits until the deployment has recovered and done all there is to do."""
    async with within(60, lambda: verdict.missing(mp, workers)):
        while True:
            with suppress(Unavailable):
                if await verdict.is_reached(mp, workers):
                    return
            await asyncio.sleep(0.2)


def fallen(workers: Crew) -> list[str]:
    """What processes said that ended by themselves, and not because there was no server when they began."""
    ended = [worker for worker in workers.workers if (worker.poll() or 0) > 0]
    return [workers.said(worker) for worker in ended if workers.handled_by(worker)]


async def chaos(seconds: float, server: Server, folder: Path) -> None:
    """Strikes for so long; then every message is handled, once in effect, or parked, and order has held."""
    options = {"lines": {**OPTIONS, "on_park": "continue"}, "effects": OPTIONS}
    async with Milepost(server.url()) as mp, Proxy(server.url()) as proxy:
        await effects.create(mp)
        with seeded() as chance, crew(proxy.url, "milepost", folder, **options) as workers:
            load, over = Load(mp, chance, streams=40), asyncio.Event()
            async with watching(server.url(), "milepost"):
                workers.start()
                appending = asyncio.create_task(append_until(load, chance, over))
                await until(lambda: workers.book.count() > 0)
                await Misfortune(server, proxy, workers, chance).strike_for(seconds)
                over.set()
                await appending
                workers.start()
                verdict = Verdict(load)
                await until_reached(verdict, mp, workers)
            await verdict.check(mp, workers)
            assert fallen(workers) == []
