"""Deliveries of a program that has run: seen, tried again, passed over."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import psycopg
import pytest

from milepost import MemoryProgress, Message, Milepost, MilepostError, NewMessage, Park, Retry, UnknownSubscription
from milepost.engine.operate import deliveries as engine_deliveries
from milepost.engine.operate.deliveries import DeliveryInfo
from milepost.engine.operate.manage import ManagedSubscription
from milepost.progress.deliveries import Decided
from support import MakeMilepost, qualified


class Shop:
    """A program whose handler fails for some orders, until it is mended."""

    def __init__(self, mp: Milepost, **options: Any) -> None:
        self.mp = mp
        self.seen: list[int] = []
        self.broken = True

        @mp.subscription("invoices", category="order", lanes=2, **options)
        async def invoice(message: Message[Any]) -> None:
            self.seen.append(message.position)
            if self.broken and message.type == "odd":
                raise Park(f"odd number {message.data}")
            if self.broken and message.type == "bad":
                raise ValueError("bad")

    @property
    def managed(self) -> ManagedSubscription:
        return self.mp.manage("invoices")

    async def append(self, *types: str, stream: str = "order-1") -> list[int]:
        return [(await self.mp.append(stream, NewMessage(name, n))).position for n, name in enumerate(types)]

    async def run(self) -> list[int]:
        """What is handled until nothing more can be."""
        self.seen.clear()
        await self.mp.run_until_idle(errors="park")
        return sorted(self.seen)

    async def listed(self, **choice: Any) -> list[DeliveryInfo]:
        return [delivery async for delivery in self.managed.deliveries(**choice)]


@pytest.fixture
async def shop(mp: Milepost) -> Shop:
    """One parked message with two behind it, and a parked one alone."""
    shop = Shop(mp)
    await shop.append("odd", "even", "even")
    await shop.append("bad", stream="order-2")
    await shop.run()
    return shop


@pytest.fixture
async def many(mp: Milepost, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Twenty-five parked messages, of as many streams, and small batches and pages."""
    monkeypatch.setattr(engine_deliveries, "MAX_DECISION_DELIVERIES", 10)
    monkeypatch.setattr(engine_deliveries, "DELIVERY_PAGE_ROWS", 7)
    shop = Shop(mp)
    for number in range(25):
        await shop.append("odd", stream=f"order-{number}")
    await shop.run()
    return shop


async def waiting_for_locks(mp: Milepost) -> int:
    """How many statements on this schema wait for another session."""
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
    statement = f"{waiting} and position(%(schema)s in query) > 0"
    [[found]] = await mp.log.database.execute(statement, {"schema": mp.settings["schema"].value})
    return int(found)


class TestLooking:
    async def test_what_a_parked_message_says(self, shop: Shop) -> None:
        parked, alone = await shop.listed(state="parked")
        assert parked.message is not None
        assert (parked.message.stream, parked.message.type, parked.message.data) == ("order-1", "odd", 0)
        assert (parked.position, parked.key, parked.state) == (1, "order-1", "parked")
        assert (parked.reason, parked.attempts, parked.total, parked.due) == ("odd number 0", 1, 1, None)
        assert parked.waiting_behind == 2
        assert parked.since >= parked.message.time
        assert (alone.position, alone.waiting_behind) == (4, 0)
        assert "ValueError: bad" in alone.error
        assert 'raise ValueError("bad")' in alone.error

    async def test_what_waits(self, shop: Shop) -> None:
        found = await shop.listed(state="waiting")
        assert [(d.position, d.waiting_behind) for d in found] == [(2, 1), (3, 1)]

    async def test_several_states_and_all(self, shop: Shop) -> None:
        assert [d.position for d in await shop.listed(state=["parked", "waiting"])] == [1, 2, 3, 4]
        assert [d.position for d in await shop.listed()] == [1, 2, 3, 4]
        assert await shop.managed.count_deliveries() == 4
        assert await shop.managed.count_deliveries(state="waiting", up_to=2) == 1

    async def test_some_of_them(self, shop: Shop) -> None:
        assert [d.position for d in await shop.listed(after=1, up_to=3)] == [2, 3]
        assert [d.position for d in await shop.listed(limit=2)] == [1, 2]
        assert await shop.listed(limit=0) == []
        assert [d.position for d in await shop.listed(key="order-2")] == [4]
        assert [d.position for d in await shop.listed(reason="ODD NUMBER")] == [1]

    async def test_in_pages(self, many: Shop) -> None:
        assert [d.position for d in await many.listed()] == list(range(1, 26))
        assert [d.position for d in await many.listed(limit=20)] == list(range(1, 21))
        pages = [len(page) async for page in many.managed.delivery_pages(limit=20)]
        assert pages == [7, 7, 6]

    async def test_large_messages_come_in_small_pages(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_deliveries, "PAGE_BYTES", 1)
        assert [len(page) async for page in shop.managed.delivery_pages()] == [1, 1, 1, 1]

    async def test_a_message_that_is_gone_from_the_log(self, shop: Shop) -> None:
        await shop.mp.log.database.execute(qualified('delete from {}.messages where "position" = 1', shop.mp), {})
        [gone, _] = await shop.listed(state="parked")
        assert (gone.position, gone.message, gone.reason) == (1, None, "odd number 0")

    @pytest.mark.parametrize(
        ("choice", "words"),
        [
            ({"state": "prked"}, "did you mean 'parked'"),
            ({"state": "gone"}, "there is no state 'gone'"),
            ({"state": []}, "empty list"),
            ({"after": -1}, "after: a number from 0 on"),
            ({"limit": -1}, "limit: a number from 0 on"),
            ({"limit": True}, "limit: a number from 0 on"),
        ],
    )
    async def test_what_cannot_be_meant(self, choice: dict[str, Any], words: str) -> None:
        """It is refused before anything is asked of a database: there is none."""
        nowhere = Milepost("postgresql://nowhere").manage("invoices")
        with pytest.raises(ValueError, match=words):
            _ = [delivery async for delivery in nowhere.deliveries(**choice)]

    async def test_an_unknown_subscription(self, shop: Shop) -> None:
        with pytest.raises(UnknownSubscription, match="did you mean 'default/invoices'"):
            await shop.mp.manage("invoice").retry(all=True)


class TestRetry:
    async def test_it_is_tried_and_counted_anew(self, shop: Shop) -> None:
        decided = await shop.managed.retry([1])
        assert (decided.moved, decided.refused) == (1, {})
        assert await shop.run() == [1]
        parked = (await shop.listed(state="parked"))[0]
        assert (parked.position, parked.attempts, parked.total) == (1, 1, 2)

    async def test_what_waited_behind_it_goes_on(self, shop: Shop) -> None:
        shop.broken = False
        await shop.managed.retry(all=True)
        assert await shop.run() == [1, 2, 3, 4]
        assert shop.seen.index(1) < shop.seen.index(2) < shop.seen.index(3)
        assert await shop.listed() == []

    async def test_up_to_a_position(self, many: Shop) -> None:
        assert (await many.managed.retry(up_to=7)).moved == 7
        assert [d.position for d in await many.listed(state="retrying")] == list(range(1, 8))

    async def test_at_most_so_many_and_then_the_next(self, many: Shop) -> None:
        for first in (1, 13):
            assert (await many.managed.retry(all=True, limit=12)).moved == 12
            assert [d.position for d in await many.listed(state="retrying", after=first - 1)] == [
                *range(first, first + 12)
            ]
        assert (await many.managed.retry(all=True, limit=0)).moved == 0

    async def test_in_batches_that_are_told(self, many: Shop) -> None:
        told: list[int] = []
        decided = await many.managed.retry(all=True, on_batch=told.append)
        assert (decided.moved, told) == (25, [10, 20, 25])

    async def test_only_those_of_a_reason(self, many: Shop) -> None:
        await many.append("bad", stream="order-99")
        await many.run()
        assert (await many.managed.retry(all=True, reason="valueerror")).moved == 1
        assert [d.position for d in await many.listed(state="retrying")] == [26]

    async def test_those_that_are_retrying_anyway(self, mp: Milepost) -> None:
        shop = Shop(mp, retry=Retry(delay=3600))
        await shop.append("bad")
        async with mp.running(), asyncio.timeout(60):
            while not await shop.listed(state="retrying"):
                await asyncio.sleep(0.02)
        shop.broken = False
        assert (await shop.managed.retry(all=True)).moved == 0
        assert (await shop.managed.retry(all=True, state="retrying")).moved == 1
        assert await shop.run() == [1]

    async def test_what_cannot_be_retried_is_named(self, shop: Shop) -> None:
        decided = await shop.managed.retry([99, 2, 1])
        assert decided.moved == 1
        assert list(decided.refused) == [2, 99]
        assert "waits behind" in decided.refused[2]
        assert "no delivery" in decided.refused[99]

    async def test_refused_ones_do_not_use_up_the_limit(self, shop: Shop) -> None:
        decided = await shop.managed.retry([1, 2, 3, 4], limit=2)
        assert (decided.moved, list(decided.refused)) == (2, [2, 3])

    async def test_an_interruption_leaves_whole_batches(self, many: Shop) -> None:
        def interrupt(moved: int) -> None:
            if moved == 20:
                raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            await many.managed.retry(all=True, on_batch=interrupt)
        assert [d.position for d in await many.listed(state="parked")] == list(range(21, 26))
        assert (await many.managed.retry(all=True)).moved == 5

    async def test_workers_that_have_nothing_to_do_look_at_once(self, mp: Milepost) -> None:
        shop = Shop(mp)
        await shop.append("odd", "even")
        async with mp.running(), asyncio.timeout(60):
            while await shop.managed.count_deliveries() < 2:
                await asyncio.sleep(0.02)
            shop.broken = False
            # From another process.
            async with Milepost(mp.url, schema=mp.settings["schema"].value) as other:
                await other.manage("invoices").retry(all=True)
            while await shop.listed():
                await asyncio.sleep(0.02)
        assert shop.seen == [1, 1, 2]


class TestSkip:
    async def test_what_waits_behind_it_goes_on(self, shop: Shop) -> None:
        assert (await shop.managed.skip([1])).moved == 1
        assert await shop.run() == [2, 3]
        assert [(d.position, d.state) for d in await shop.listed()] == [(1, "skipped"), (4, "parked")]
        decided = await shop.managed.skip([1])
        assert (decided.moved, list(decided.refused)) == (0, [1])
        assert "skipped before" in decided.refused[1]

    async def test_one_that_waits(self, shop: Shop) -> None:
        shop.broken = False
        await shop.managed.skip(2)
        await shop.managed.retry(1)
        assert await shop.run() == [1, 3]

    async def test_all_means_the_parked_ones(self, shop: Shop) -> None:
        assert (await shop.managed.skip(all=True)).moved == 2
        assert [(d.position, d.state) for d in await shop.listed()] == [
            (1, "skipped"),
            (2, "waiting"),
            (3, "waiting"),
            (4, "skipped"),
        ]
        assert (await shop.managed.skip(all=True, state="waiting")).moved == 2
        assert await shop.run() == []

    async def test_under_continue(self, mp: Milepost) -> None:
        shop = Shop(mp, on_park="continue")
        await shop.append("odd", "even")
        await shop.run()
        assert (await shop.managed.skip(up_to=1)).moved == 1
        await shop.append("even")
        assert await shop.run() == [3]


class TestTwoPeople:
    """Who decides about the same messages at the same moment: each is moved by one of both."""

    @pytest.fixture(params=["handled", "pulled"])
    async def parked(self, request: pytest.FixtureRequest, mp: Milepost) -> ManagedSubscription:
        """Twelve parked messages."""
        options: dict[str, Any] = {"category": "order", "retry": Retry.never}
        if request.param == "handled":
            shop = Shop(mp)
        else:
            await mp.create_subscription("invoices", tracking="all", **options)
        for number in range(12):
            await mp.append(f"order-{number}", NewMessage("odd"))
        if request.param == "handled":
            await shop.run()
        else:
            await mp.settle(park=await mp.pull("invoices", limit=12))
        return mp.manage("invoices")

    async def both(self, mp: Milepost, first: Awaitable[Decided], second: Awaitable[Decided]) -> list[Decided]:
        """Both have seen the messages before either has decided; the first is first."""
        lock = qualified('select from {}.deliveries where "position" = 12 for update', mp)
        async with await psycopg.AsyncConnection.connect(mp.url) as connection:
            await connection.execute(lock.encode())
            tasks = []
            for number, person in enumerate((first, second), 1):
                tasks.append(asyncio.ensure_future(person))
                while await waiting_for_locks(mp) < number:
                    await asyncio.sleep(0.01)
            await connection.commit()
        return await asyncio.gather(*tasks)

    @pytest.mark.shard("variants", fast=["handled-meant0", "pulled-meant1"])
    @pytest.mark.parametrize("meant", [{"all": True}, {"up_to": 12}, {"positions": range(1, 13)}])
    async def test_each_message_is_moved_by_one(
        self, mp: Milepost, parked: ManagedSubscription, meant: dict[str, Any]
    ) -> None:
        retried, skipped = await self.both(mp, parked.retry(**meant), parked.skip(**meant))
        assert (retried.moved, retried.refused) == (12, {})
        assert (skipped.moved, sorted(skipped.refused)) == (0, list(range(1, 13)))
        assert skipped.refused[1] == "it is retrying by now: decide again if that is still wanted"
        assert await parked.count_deliveries(state="retrying") == 12

    async def test_who_has_the_same_tried_again(self, mp: Milepost, parked: ManagedSubscription) -> None:
        await parked.retry(all=True)
        again: dict[str, Any] = {"all": True, "state": ["parked", "retrying"]}
        first, second = await self.both(mp, parked.retry(**again), parked.retry(**again))
        assert (first.moved, second.moved, len(second.refused)) == (12, 0, 12)

    async def test_what_somebody_saw_parked_and_is_not_any_more(self, parked: ManagedSubscription) -> None:
        await parked.retry([1, 2])
        decided = await parked.skip([1, 2, 3], state="parked")
        assert (decided.moved, sorted(decided.refused)) == (1, [1, 2])
        assert (await parked.skip([1, 2])).moved == 2


@pytest.mark.parametrize("verb", ["retry", "skip"])
@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({}, TypeError, "nothing says which"),
        ({"all": True, "up_to": 3}, TypeError, "all and up_to exclude each other"),
        ({"positions": [1], "all": True}, TypeError, "positions and all exclude each other"),
        ({"limit": 5}, TypeError, "nothing says which"),
        ({"positions": [1], "key": "order-1"}, TypeError, "not with positions"),
        ({"positions": [1], "state": "running"}, ValueError, "no state 'running'"),
        ({"all": True, "state": "running"}, ValueError, "no state 'running'"),
        ({"positions": ["1"]}, ValueError, "positions: a number"),
        ({"positions": [-1]}, ValueError, "positions: a number"),
        ({"up_to": True}, ValueError, "up_to: a number"),
        ({"all": True, "limit": -1}, ValueError, "limit: a number"),
    ],
)
async def test_contradictions_are_refused(
    verb: str, words: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Before anything is asked of a database: there is none."""
    nowhere = Milepost("postgresql://nowhere").manage("invoices")
    with pytest.raises(error, match=message):
        await getattr(nowhere, verb)(**words)


@pytest.mark.parametrize("verb", ["retry", "skip"])
async def test_a_contradiction_changes_nothing(shop: Shop, verb: str) -> None:
    with pytest.raises(TypeError, match="positions and all exclude each other"):
        await getattr(shop.managed, verb)(positions=[1], all=True)
    assert len(await shop.listed(state="parked")) == 2


async def test_what_is_waiting_cannot_be_retried(shop: Shop) -> None:
    with pytest.raises(ValueError, match="retry takes no state 'waiting'"):
        await shop.managed.retry(all=True, state="waiting")


async def test_progress_outside_of_postgresql(make_mp: MakeMilepost) -> None:
    async with make_mp(progress=MemoryProgress()) as mp:
        with pytest.raises(MilepostError, match="kept outside of PostgreSQL"):
            await mp.manage("invoices").retry(all=True)
        with pytest.raises(MilepostError, match="kept outside of PostgreSQL"):
            _ = [d async for d in mp.manage("invoices").deliveries()]


async def test_progress_in_another_database(make_mp: MakeMilepost, second_url: str) -> None:
    async with make_mp(progress=second_url) as mp:
        shop = Shop(mp)
        await shop.append("odd", "even")
        await shop.run()
        assert [(d.position, d.message and d.message.type) for d in await shop.listed()] == [
            (1, "odd"),
            (2, "even"),
        ]
        assert (await shop.managed.skip(all=True)).moved == 1
        assert await shop.run() == [2]


def test_from_code_that_is_not_async(make_mp: MakeMilepost) -> None:
    mp = make_mp()

    @mp.subscription("invoices", category="order", lanes=1)
    def invoice(message: Message[Any]) -> None:
        raise Park("odd")

    with mp.sync:
        for number in range(3):
            mp.sync.append(f"order-{number}", NewMessage("placed"))
        mp.sync.run_until_idle()
    managed = mp.sync.manage("invoices")
    assert [d.position for d in managed.deliveries(state="parked")] == [1, 2, 3]
    assert managed.skip([1]).moved == 1
    assert managed.retry(all=True, limit=1).moved == 1
    assert managed.count_deliveries(state="parked") == 1
    mp.sync.close()
