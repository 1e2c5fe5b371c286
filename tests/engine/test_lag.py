"""How far subscriptions are behind, asked from any process."""

import asyncio
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from milepost import Message, Milepost, NewMessage, Park, Retry, UnknownSubscription
from milepost.dispatch import Cursor
from milepost.engine.lanes import checkpoint_writer
from milepost.engine.observe.lag import positions_not_passed
from support import MakeMilepost, qualified


def passed(cursor: Cursor, position: int) -> bool:
    return position <= cursor.position or any(first <= position <= last for first, last in cursor.ahead)


def test_positions_that_some_cursor_has_not_passed() -> None:
    assert positions_not_passed([], 10) == []
    assert positions_not_passed([Cursor(10), Cursor(12)], 10) == []
    assert positions_not_passed([Cursor(0)], 0) == []
    assert positions_not_passed([Cursor(3), Cursor(7)], 10) == [(4, 10)]
    assert positions_not_passed([Cursor(3, ((5, 20),)), Cursor(10)], 10) == [(4, 4)]
    assert positions_not_passed([Cursor(3, ((5, 6), (8, 8)))], 10) == [(4, 4), (7, 7), (9, 10)]


@pytest.mark.parametrize("seed", range(200))
def test_they_are_what_a_plain_count_finds(seed: int) -> None:
    random = Random(seed)
    cursors = []
    for _ in range(random.randint(1, 4)):
        position, ahead = random.randint(0, 20), []
        at = position + 1
        while random.random() < 0.7:
            first = at + random.randint(1, 4)
            last = first + random.randint(0, 4)
            ahead.append((first, last))
            at = last + 1
        cursors.append(Cursor(position, tuple(ahead)))
    head = random.randint(0, 40)
    found = positions_not_passed(cursors, head)
    counted = [at for at in range(1, head + 1) if not all(passed(cursor, at) for cursor in cursors)]
    assert [at for low, high in found for at in range(low, high + 1)] == counted


async def fill(mp: Milepost, count: int, streams: int = 5) -> None:
    for number in range(count):
        await mp.append(f"order-{number % streams}", NewMessage("placed", number))


async def advance(mp: Milepost, seconds: float) -> None:
    """Moves the clock that decides."""
    text = sql.SQL("create or replace function {}.clock() returns timestamptz language sql as {}").format(
        sql.Identifier(mp.settings["schema"].value),
        sql.Literal(f"select clock_timestamp() + interval '{seconds} s'"),
    )
    async with await psycopg.AsyncConnection.connect(mp.url, autocommit=True) as connection:
        await connection.execute(text)


async def test_the_lag_is_what_was_not_passed_and_nothing_once_all_is_handled(
    mp: Milepost, make_mp: MakeMilepost
) -> None:
    @mp.subscription("all", category="order", lanes=3)
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    await fill(mp, 20)
    await advance(mp, 60)
    async with make_mp(group="elsewhere") as elsewhere:
        info = await elsewhere.manage("default/all").info()
        assert (info.group, info.name, info.status) == ("default", "all", "waiting")
        assert info.lag.positions == 20
        assert 60 <= info.lag.seconds < 120
        await mp.run_until_idle()
        info = await elsewhere.manage("default/all").info()
        assert (info.lag.positions, info.lag.seconds) == (0, 0.0)
        assert [(lane.number, lane.position) for lane in info.lanes] == [(0, 20), (1, 20), (2, 20)]
        assert (info.owners, info.stalled) == ((), None)
        assert await elsewhere.subscriptions() == [info]


async def test_one_slow_message_is_a_lag_of_one(mp: Milepost) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @mp.subscription("slow", category="order", lanes=1)
    async def handle(message: Message[Any]) -> None:
        if message.data == 3:
            started.set()
            await go_on.wait()

    await fill(mp, 20, streams=20)
    sub = mp.manage("slow")
    async with mp.running():
        await started.wait()
        async with asyncio.timeout(60):
            while (info := await sub.info()).lag.positions != 1:
                await asyncio.sleep(0.02)
        assert info.lag.seconds > 0
        assert info.lanes[0].position == 3
        go_on.set()


async def test_what_is_not_for_it_is_no_lag_behind_a_slow_message(
    mp: Milepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "IDLE_WRITE_SECONDS", 0.05)
    monkeypatch.setattr(checkpoint_writer, "JOINT_WRITE_SECONDS", 0.05)
    started, go_on = asyncio.Event(), asyncio.Event()

    @mp.subscription("slow", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None:
        started.set()
        await go_on.wait()

    async with mp.running():
        await mp.append("order-1", NewMessage("placed"))
        await started.wait()
        for number in range(20):
            await mp.append(f"other-{number}", NewMessage("noted"))
        async with asyncio.timeout(60):
            while (info := await mp.manage("slow").info()).lag.positions != 1:
                await asyncio.sleep(0.02)
        assert info.lag.seconds > 0
        go_on.set()


async def test_who_works_on_it_is_told(mp: Milepost) -> None:
    @mp.subscription("owned", category="order", lanes=2)
    async def handle(message: Message[Any]) -> None: ...

    sub = mp.manage("owned")
    async with mp.running():
        async with asyncio.timeout(60):
            while (info := await sub.info()).status != "running":
                await asyncio.sleep(0.02)
        [owner] = info.owners
        assert [lane.owner for lane in info.lanes] == [owner, owner]
        assert all(lane.since is not None and lane.since.tzinfo for lane in info.lanes)
        # It beats now and then, so that it may take some turns until it seems to be dead.
        async with asyncio.timeout(60):
            while (info.status, info.owners) != ("waiting", ()):
                for dead in ("workers set beat = beat", "serving set until = until"):
                    statement = qualified(f"update {{}}.{dead} - interval '1 day'", mp)
                    await mp.log.database.execute(statement, {})
                info = await sub.info()
    assert [(lane.owner, lane.since) for lane in (await sub.info()).lanes] == [(None, None)] * 2


async def test_what_needs_attention_is_counted_and_is_no_lag(mp: Milepost) -> None:
    @mp.subscription("failing", category="order", lanes=1, retry=Retry(delay=3600))
    async def handle(message: Message[Any]) -> None:
        if message.stream == "order-0":
            raise Park("odd")
        if message.stream == "order-1":
            raise ValueError

    await fill(mp, 20, streams=4)
    async with mp.running():
        async with asyncio.timeout(60):
            while (info := await mp.manage("failing").info()).lag.positions:
                await asyncio.sleep(0.02)
    assert (info.parked, info.retrying, info.waiting, info.unrouted) == (1, 1, 8, 0)
    assert info.lag.seconds == 0.0


async def test_a_stalled_subscription_says_why(mp: Milepost) -> None:
    @mp.subscription("stalling", category="order", stall_after=2, retry=Retry(delay=60), ordered_by=None)
    async def handle(message: Message[Any]) -> None:
        raise ValueError

    await fill(mp, 10)
    async with mp.running():
        async with asyncio.timeout(60):
            while (info := await mp.manage("stalling").info()).status != "stalled":
                await asyncio.sleep(0.02)
    assert info.stalled
    assert "attempts failed" in info.stalled


async def test_a_start_at_now_is_no_lag(mp: Milepost) -> None:
    @mp.subscription("new", start="now")
    async def handle(message: Message[Any]) -> None: ...

    await fill(mp, 5)
    await mp.run_until_idle()
    assert (await mp.manage("new").info()).lag.positions == 0


async def test_an_unknown_name_is_refused_with_a_suggestion(mp: Milepost) -> None:
    with pytest.raises(UnknownSubscription, match="there is none at all"):
        await mp.manage("invoices").info()

    @mp.subscription("invoices", category="order")
    async def handle(message: Message[Any]) -> None: ...

    await mp.run_until_idle()
    assert (await mp.manage("invoices").info()).name == "invoices"
    with pytest.raises(UnknownSubscription, match="did you mean 'default/invoices'"):
        await mp.manage("invioces").info()
    with pytest.raises(UnknownSubscription, match="'billing/invoices': did you mean 'default/invoices'"):
        await mp.manage("billing/invoices").info()


async def test_the_age_is_found_in_a_few_blocks(mp: Milepost) -> None:
    """Also by a plan from when there were no messages, and with many positions settled ahead."""
    await find_the_age_in_a_few_blocks(mp, 10_000)


@pytest.mark.shard("large")
async def test_the_age_is_found_in_a_few_blocks_however_long_the_log(mp: Milepost) -> None:
    await find_the_age_in_a_few_blocks(mp, 100_000)


async def find_the_age_in_a_few_blocks(mp: Milepost, count: int) -> None:
    """With `count` messages, of which a twentieth is settled ahead."""
    statement = mp.log.statements.get("oldest_within")
    lows = list(range(count // 2, count // 2 + count // 10, 2))
    ahead = {"number": 0, "lows": lows, "highs": lows}
    whole = {"number": 1, "lows": [1], "highs": [count]}
    explain: Any = "explain (analyze, buffers, format json) " + statement

    async with await psycopg.AsyncConnection.connect(mp.url, autocommit=True) as connection:

        async def blocks(sets: Any) -> int:
            cursor = await connection.execute(explain, {"sets": Jsonb(sets)})
            found = await cursor.fetchone()
            assert found is not None
            plan = found[0][0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        for _ in range(7):
            await blocks([ahead, whole])
        await mp.append("order-1", NewMessage("placed"))
        copy = qualified(
            "insert into {0}.messages (stream_id, version, category_hash, bucket, size, id, type, data, "
            "properties, metadata) "
            "select stream_id, n, category_hash, bucket, size, gen_random_uuid(), type, data, properties, "
            "metadata from {0}.messages, generate_series(2, %(count)s::bigint) n",
            mp,
        )
        await mp.log.database.execute(copy, {"count": count})
        assert await blocks([whole]) <= 10
        assert await blocks([ahead]) <= 10
        assert await blocks([ahead, whole] * 50) <= 1000


def test_from_code_that_is_not_async(make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("plain", category="order", lanes=2)
    def handle(message: Message[Any]) -> None: ...

    with mp.sync:
        mp.sync.append("order-1", NewMessage("placed"))
        mp.sync.run_until_idle()
        mp.sync.append("order-1", NewMessage("placed"))
        assert mp.sync.manage("plain").info().lag.positions == 1
        assert [info.name for info in mp.sync.subscriptions()] == ["plain"]
