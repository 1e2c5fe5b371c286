"""Random load: writers with delays, rollbacks and savepoints; followers see each committed position once."""

import asyncio
import random
from typing import Any

import pytest

from milepost import Milepost, NewMessage
from support import Connection, MakeMilepost, following

WRITERS = 12
TRANSACTIONS = 20
"""Of each writer; `tests/soak` writes for hours."""
STREAMS = 40
CATEGORIES = 10


async def write(mp: Milepost, database_url: str, seed: int, committed: dict[int, str]) -> None:
    """Appends in transactions of one to three messages, some with pauses, rollbacks and savepoints."""
    chance = random.Random(seed)
    async with await Connection.connect(database_url) as connection:
        for _ in range(TRANSACTIONS):
            kept: dict[int, str] = {}
            for _ in range(chance.randint(1, 3)):
                stream = f"c{chance.randrange(CATEGORIES)}-{seed}-{chance.randrange(STREAMS)}"
                if chance.random() < 0.2:
                    await connection.execute("savepoint s")
                    await mp.append(stream, NewMessage("undone"), connection=connection)
                    await connection.execute("rollback to savepoint s")
                result = await mp.append(stream, NewMessage("happened"), connection=connection)
                kept[result.position] = stream
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.02)
            if chance.random() < 0.2:
                await connection.rollback()
            else:
                await connection.commit()
                committed.update(kept)
            if chance.random() < 0.02:
                await asyncio.sleep(0.1)


async def test_every_follower_sees_every_committed_position_once_in_order(
    mp: Milepost, make_mp: MakeMilepost, database_url: str
) -> None:
    committed: dict[int, str] = {}
    async with make_mp() as second, following(mp) as everything, following(second) as elsewhere:
        async with following(mp, category="c3") as one_in_ten, following(second, category="c7") as another:
            await asyncio.gather(*(write(mp, database_url, seed, committed) for seed in range(WRITERS)))
            wanted = sorted(committed)
            assert len(wanted) > WRITERS * TRANSACTIONS
            assert await everything.until(len(wanted)) == wanted
            assert await elsewhere.until(len(wanted)) == wanted
            for follower, category in ((one_in_ten, "c3-"), (another, "c7-")):
                of_category = [p for p in wanted if committed[p].startswith(category)]
                assert await follower.until(len(of_category)) == of_category
            assert [m.position async for m in mp.read()] == wanted


async def test_all_followers_of_a_process_share_what_is_fetched(mp: Milepost) -> None:
    """Each row at the head is fetched once, as one object, whose payload is decoded once."""
    fetched: list[int] = []
    messages: list[list[Any]] = [[] for _ in range(5)]
    page = mp.log.feed._reader.log_page

    async def counted(*arguments: Any, **options: Any) -> Any:
        found = await page(*arguments, **options)
        fetched.extend(message.position for message in found)
        return found

    mp.log.feed._reader.log_page = counted  # type: ignore[method-assign]

    async def follow(into: list[Any]) -> None:
        async for message in mp.follow():
            into.append(message)
            if len(into) == 100:
                return

    tasks = [asyncio.create_task(follow(into)) for into in messages]
    async with asyncio.timeout(40):
        while mp.log.feed._generation < 0:
            await asyncio.sleep(0)
        for number in range(100):
            await mp.append(f"a-{number}", NewMessage("happened", {"number": number}))
        await asyncio.gather(*tasks)
    assert fetched == list(range(1, 101))
    for row in zip(*messages, strict=True):
        assert all(message is row[0] for message in row)
        assert row[0].data is row[1].data


async def test_a_slow_follower_falls_back_to_history_and_misses_nothing(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed keeps little; who lags reads history, and comes back to the head without gap or repetition."""
    monkeypatch.setattr("milepost.log.postgres.feed.FEED_KEEP_BYTES", 20_000)
    seen: list[int] = []
    async with following(mp) as quick:
        slow = mp.follow()
        await mp.append("a-0", NewMessage("happened"))
        seen.append((await anext(slow)).position)
        for number in range(1, 40):
            await mp.append(f"a-{number}", [NewMessage("happened")] * 50)
            await quick.until(50 * number + 1)
            if number % 10 == 0:
                seen += [(await anext(slow)).position for _ in range(120)]
        while len(seen) < 1951:
            seen.append((await anext(slow)).position)
        await slow.aclose()
    assert seen == quick.seen == list(range(1, 1952))
