"""Connections that are cut, in the middle of a commit too."""

import asyncio
from collections import defaultdict
from itertools import cycle
from typing import Any

from engine.faults import effects
from engine.faults.book import is_in_order
from engine.faults.chance import seeded
from engine.faults.crew import until
from engine.faults.load import Load
from engine.faults.proxy import Fate, Proxy, Rule, is_commit
from engine.faults.watch import watching
from milepost import Message, Milepost, NewMessage, Transaction
from patience import within
from support import MakeMilepost, qualified

ROUNDS = 12
"""How often messages are appended while connections are cut: after every third time."""
LOST = 8
"""How many commits have to lose something before the test proves anything."""


def loses_commits() -> Rule:
    """Of four commits one loses its answer, one does not arrive, and two pass, in turn."""
    fates = cycle([Fate.LOSES_ITS_ANSWER, Fate.PASSES, Fate.IS_LOST, Fate.PASSES])
    return lambda frame: next(fates) if is_commit(frame) else Fate.PASSES


async def test_cut_connections_lose_nothing_and_keep_the_order(
    mp: Milepost, proxy: Proxy, make_mp: MakeMilepost, database_url: str, schema: str
) -> None:
    program = make_mp(url=proxy.url, concurrency=4)
    seen: dict[str, list[int]] = defaultdict(list)
    running: set[str] = set()
    two_at_once: list[str] = []

    @program.subscription("lines", category="order", lanes=4)
    async def handle(message: Message[Any]) -> None:
        two_at_once.extend({message.stream} & running)
        running.add(message.stream)
        await asyncio.sleep(0.001)
        running.discard(message.stream)
        seen[message.stream].append(message.version)

    with seeded() as chance:
        load = Load(mp, chance)
        async with program.running(), watching(database_url, schema):
            for turn in range(ROUNDS):
                before = load.total
                await load.append(20)
                await until(lambda: sum(len(set(versions)) for versions in seen.values()) > before)  # noqa: B023
                if turn % 3 == 2:
                    proxy.cut(chance if chance.random() < 0.5 else None)
            await until(lambda: sum(len(set(versions)) for versions in seen.values()) == load.total)
        wanted = load.versions()
        assert all(is_in_order(versions, wanted[stream]) for stream, versions in seen.items())
        assert two_at_once == []


async def test_a_commit_whose_answer_is_lost_takes_effect_once(
    mp: Milepost, proxy: Proxy, make_mp: MakeMilepost, database_url: str, schema: str
) -> None:
    await effects.create(mp)
    program = make_mp(url=proxy.url)
    insert = qualified("insert into {}.effects (stream, version) values (%s, %s)", mp)

    @program.subscription("effects", category="order", lanes=2)
    async def handle(message: Message[Any], tx: Transaction) -> None:
        await tx.execute(insert, (message.stream, message.version))
        await tx.append(f"receipt-{message.stream}", NewMessage("due", message.version))

    with seeded() as chance:
        load = Load(mp, chance, streams=5)
        async with program.running(), watching(database_url, schema):
            await load.append(5)
            await effects.until_all(mp, load, 40)
            proxy.rule = loses_commits()
            async with within(60, lambda: f"{proxy.lost} lost commits of {LOST}"):
                while proxy.lost < LOST:
                    await load.append()
                    await asyncio.sleep(0.005)
            proxy.rule = lambda frame: Fate.PASSES
            await effects.until_all(mp, load, 30)
        assert await effects.read(mp) == load.once()
        receipts = [(message.stream, message.data) async for message in mp.read(category="receipt")]
        assert sorted(receipts) == sorted((f"receipt-{stream}", version) for stream, version in load.once())
