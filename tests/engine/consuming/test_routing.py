"""Who gets a message: filters, priorities, capacities, and routes that change while messages flow."""

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from engine.consuming.taking import ack, is_dry, take, taking, until
from milepost import FilterError, InvalidMessage, Milepost, NewMessage, Route
from milepost.engine.consumers.routes import ConsumerRoutes
from milepost.engine.lanes.reader import SubscriptionPages
from milepost.log.query import Segment
from support import MakeMilepost


async def unrouted(mp: Milepost) -> int:
    return (await mp.manage("shipping").info()).unrouted


async def customers(mp: Milepost, *numbers: int, data: Any = None) -> None:
    """A message for each of these customers."""
    for number in numbers:
        await mp.append(f"order-{number}", NewMessage("placed", data, properties={"CustomerId": number}))


@pytest.fixture(autouse=True)
async def shipping(mp: Milepost) -> None:
    await mp.create_subscription("shipping")


class TestRoutes:
    async def test_each_gets_what_matches_its_filter(self, mp: Milepost) -> None:
        await customers(mp, 1, 2, 1, 2)
        async with (
            mp.consumer("shipping", where="CustomerId == 1") as first,
            mp.consumer("shipping", where="CustomerId == 2") as second,
        ):
            assert await ack(await take(first, 2)) == [1, 3]
            assert await ack(await take(second, 2)) == [2, 4]

    async def test_several_routes_of_one_consumer(self, mp: Milepost) -> None:
        await customers(mp, 1, 2, 3)
        routes = [Route("CustomerId == 1", name="vip"), Route("CustomerId < 3", priority=-1)]
        async with mp.consumer("shipping", routes=routes) as consumer:
            given = await take(consumer, 2)
            assert [(each.position, each.route) for each in given] == [(1, "vip"), (2, "CustomerId < 3")]
            assert consumer.routes == tuple(routes)
            assert await is_dry(consumer)

    async def test_without_a_filter_everything_matches(self, mp: Milepost) -> None:
        await customers(mp, 1)
        await mp.append("order-1", NewMessage("without properties"))
        async with mp.consumer("shipping") as consumer:
            given = await take(consumer, 2)
            assert [(each.position, each.route) for each in given] == [(1, "everything"), (2, "everything")]

    async def test_the_highest_priority_that_matches(self, mp: Milepost) -> None:
        async with (
            mp.consumer("shipping", priority=1) as low,
            mp.consumer("shipping", where="CustomerId == 1", priority=10) as high,
        ):
            await customers(mp, 1, 2, 1)
            assert await ack(await take(high, 2)) == [1, 3]
            assert await ack(await take(low, 1)) == [2]

    async def test_equal_filters_take_turns_and_the_spelling_does_not_matter(self, mp: Milepost) -> None:
        async with (
            mp.consumer("shipping", where="CustomerId==1 && true") as first,
            mp.consumer("shipping", where="(CustomerId == 1) and true") as second,
        ):
            await customers(mp, 1, 1, 1, 1)
            assert sorted(await ack(await take(first, 2)) + await ack(await take(second, 2))) == [1, 2, 3, 4]

    async def test_who_came_first_is_first_also_after_being_reconfigured(self, mp: Milepost) -> None:
        """Overlapping filters of one priority: whose turn it is does not depend on chance."""
        async with (
            mp.consumer("shipping", where="CustomerId >= 1") as first,
            mp.consumer("shipping", where="CustomerId <= 1") as second,
        ):
            await customers(mp, 1)
            assert await ack(await take(first, 1)) == [1]
            await first.configure(where="CustomerId >= 0")
            await customers(mp, 1, -1)
            assert await ack(await take(first, 1)) == [2]
            assert await ack(await take(second, 1)) == [3]

    async def test_options_beside_routes(self, mp: Milepost) -> None:
        with pytest.raises(ValueError, match="routes say it all: give priority to each of them"):
            mp.consumer("shipping", routes=[Route()], priority=1)
        with pytest.raises(ValueError, match="at least one route"):
            mp.consumer("shipping", routes=[])
        with pytest.raises(ValueError, match="Route"):
            mp.consumer("shipping", routes=["CustomerId == 1"])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="own name"):
            mp.consumer("shipping", routes=[Route("a == 1", name="x"), Route("b == 1", name="x")])

    @pytest.mark.parametrize(
        "options", [{"capacity": -1}, {"capacity": "1"}, {"capacity_bytes": 1.5}, {"priority": "x"}]
    )
    async def test_values_that_cannot_be(self, mp: Milepost, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="a whole number"):
            mp.consumer("shipping", **options)

    async def test_a_filter_that_is_none(self, mp: Milepost) -> None:
        with pytest.raises(FilterError, match="expected"):
            mp.consumer("shipping", where="CustomerId ==")


class TestUnrouted:
    async def test_what_nobody_wants_holds_up_nobody_and_goes_out_in_order_when_somebody_does(
        self, mp: Milepost
    ) -> None:
        await customers(mp, *[1, 2] * 20)
        async with taking(mp, "shipping", where="CustomerId == 1") as first:
            assert await first.until(20) == list(range(1, 41, 2))
            await until(lambda: _is(mp, 20))
            async with taking(mp, "shipping", where="CustomerId == 2") as second:
                assert await second.until(20) == list(range(2, 41, 2))
                await until(lambda: _is(mp, 0))

    async def test_a_consumer_that_comes_later_gets_what_it_matches_before_what_is_new(self, mp: Milepost) -> None:
        await customers(mp, 2, 2)
        async with mp.consumer("shipping", where="CustomerId == 1"):
            await until(lambda: _is(mp, 2))
        await customers(mp, 2)
        async with taking(mp, "shipping") as everything:
            assert await everything.until(3) == [1, 2, 3]

    async def test_more_than_there_may_be_stop_the_reading_and_nothing_is_lost(self, mp: Milepost) -> None:
        await mp.manage("shipping").update(max_unrouted=5, window=10)
        await customers(mp, *[2] * 50, 1)
        async with taking(mp, "shipping", where="CustomerId == 1") as first:
            await until(lambda: _is(mp, 5))
            await until(lambda: _has_status(mp, "stopped"))
            info = await mp.manage("shipping").info()
            assert (info.lag.positions, info.stopped) == (
                46,
                "5 messages are unrouted (max_unrouted=5); "
                "no consumer takes the next one; their filters: CustomerId == 1",
            )
            async with taking(mp, "shipping", where="CustomerId == 2") as second:
                assert await second.until(50) == list(range(1, 51))
                assert await first.until(1) == [51]
                await until(lambda: _has_status(mp, "running"))

    async def test_one_unmatched_redelivery_stops_nothing(self, mp: Milepost) -> None:
        await customers(mp, 2)
        async with mp.consumer("shipping", where="CustomerId == 2") as second:
            await (await take(second, 1))[0].retry(after=0.01)
        await customers(mp, *[1] * 10)
        async with taking(mp, "shipping", where="CustomerId == 1") as first:
            await first.until(10)
            await until(lambda: _is(mp, 1))


async def _has_status(mp: Milepost, status: str) -> bool:
    return (await mp.manage("shipping").info()).status == status


async def _is(mp: Milepost, count: int) -> bool:
    return await unrouted(mp) == count


class TestCapacity:
    async def test_no_more_than_its_capacity_and_a_refill_at_four_fifths(self, mp: Milepost) -> None:
        await customers(mp, *[1] * 30)
        async with mp.consumer("shipping", capacity=10) as consumer:
            held = await take(consumer, 10)
            assert await is_dry(consumer)
            await ack(held[:1])
            assert await is_dry(consumer)
            await ack(held[1:2])
            assert [delivery.position for delivery in await take(consumer, 2)] == [11, 12]
            assert await is_dry(consumer)

    async def test_in_bytes_with_one_message_more_than_fits(self, mp: Milepost) -> None:
        await customers(mp, *[1] * 10, data="x" * 1000)
        async with mp.consumer("shipping", capacity_bytes=2500) as consumer:
            held = await take(consumer, 3)
            assert await is_dry(consumer)
            await ack(held)
            assert len(await take(consumer, 3)) == 3

    async def test_nothing_pauses(self, mp: Milepost) -> None:
        await customers(mp, 1, 1)
        async with mp.consumer("shipping", capacity=0) as paused:
            assert await is_dry(paused)
            await paused.configure(capacity=1, capacity_bytes=0)
            assert await is_dry(paused)
            await paused.configure(capacity_bytes=1000)
            assert await ack(await take(paused, 1)) == [1]
            await paused.configure(capacity=0)
            assert await is_dry(paused)

    async def test_a_full_consumer_spills_nothing_to_a_lower_priority_of_the_same_match(
        self, mp: Milepost
    ) -> None:
        await customers(mp, 1, 1)
        async with (
            mp.consumer("shipping", where="CustomerId == 1", priority=2, capacity=1) as high,
            mp.consumer("shipping", where="CustomerId == 1", priority=1) as low,
        ):
            held = await take(high, 1)
            assert await is_dry(low)
            await ack(held)
            assert await ack(await take(high, 1)) == [2]

    async def test_and_holds_up_no_idle_one_with_another_filter(self, mp: Milepost) -> None:
        """Also when there are more messages for it than are read ahead."""
        await mp.manage("shipping").update(window=10)
        async with (
            mp.consumer("shipping", where="CustomerId == 1", priority=2, capacity=1) as full,
            mp.consumer("shipping", where="CustomerId == 2") as idle,
        ):
            await customers(mp, *[1] * 40, 2)
            held = await take(full, 1)
            assert await ack(await take(idle, 1)) == [41]
            found = await ack(held)
            for _ in range(39):
                found += await ack(await take(full, 1))
            assert found == list(range(1, 41))

    async def test_nor_when_they_are_read_at_once(self, mp: Milepost) -> None:
        """What the full one holds is no part of the window, which is neither full nor half free then."""
        await mp.manage("shipping").update(window=10)
        await customers(mp, *[1] * 40, 2)
        async with (
            mp.consumer("shipping", where="CustomerId == 1", priority=2, capacity=1) as full,
            mp.consumer("shipping", where="CustomerId == 2") as idle,
        ):
            held = await take(full, 1)
            assert await ack(await take(idle, 1)) == [41]
            await ack(held)

    async def test_one_gets_what_it_has_capacity_for_however_little_is_read_ahead(self, mp: Milepost) -> None:
        """What it has is no part of the window. Nothing is settled meanwhile, and nothing new comes."""
        await mp.manage("shipping").update(window=10)
        async with mp.consumer("shipping", capacity=40) as consumer:
            await mp.append("order-1", [NewMessage("placed")] * 40)
            held = await take(consumer, 40)
            assert [delivery.position for delivery in held] == list(range(1, 41))
            await ack(held)

    async def test_no_page_is_read_for_each_message_that_a_full_one_settles(
        self, mp: Milepost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where nobody else waits for anything, half of the window is free before more is read."""
        reads = 0
        after = SubscriptionPages.after

        async def counted(pages: SubscriptionPages, position: int, lanes: Collection[int]) -> Segment | None:
            nonlocal reads
            reads += 1
            return await after(pages, position, lanes)

        monkeypatch.setattr(SubscriptionPages, "after", counted)
        await mp.manage("shipping").update(window=100)
        await customers(mp, *range(400))
        async with mp.consumer("shipping", capacity=5) as consumer:
            held = await take(consumer, 5)
            for _ in range(395):
                await ack([held.pop(0)])
                held += await take(consumer, 1)
                # It has its time to read.
                await asyncio.sleep(0.002)
        assert reads < 250

    async def test_each_route_has_its_own(self, mp: Milepost) -> None:
        await customers(mp, 1, 1, 2, 2)
        routes = [Route("CustomerId == 1", capacity=1), Route("CustomerId == 2", capacity=2)]
        async with mp.consumer("shipping", routes=routes) as consumer:
            assert sorted(delivery.position for delivery in await take(consumer, 3)) == [1, 3, 4]
            assert await is_dry(consumer)


class TestChanges:
    async def test_another_filter_priority_and_capacity(self, mp: Milepost) -> None:
        async with mp.consumer("shipping", where="CustomerId == 1") as consumer:
            await consumer.configure(where="CustomerId == 2", priority=3, capacity=5)
            assert consumer.routes == (Route("CustomerId == 2", priority=3, capacity=5),)
            await customers(mp, 1, 2)
            assert await ack(await take(consumer, 1)) == [2]
            await consumer.configure(where=None)
            assert await ack(await take(consumer, 1)) == [1]

    async def test_an_invalid_filter_is_refused_and_the_old_one_stays_in_force(self, mp: Milepost) -> None:
        async with mp.consumer("shipping", where="CustomerId == 1") as consumer:
            changes: list[dict[str, Any]] = [
                {"where": "CustomerId =! 1"},
                {"where": '1 == "a"'},
                {"where": "CustomerId == 2", "capacity": -1},
            ]
            for change in changes:
                with pytest.raises((FilterError, ValueError)):
                    await consumer.configure(**change)
            with pytest.raises(TypeError, match="did you mean 'priority'"):
                await consumer.configure(priorty=2)
            assert consumer.routes == (Route("CustomerId == 1"),)
            await customers(mp, 2, 1)
            assert await ack(await take(consumer, 1)) == [2]
            assert await is_dry(consumer)

    async def test_what_it_has_stays_with_it_and_in_its_budget(self, mp: Milepost) -> None:
        await customers(mp, *[1] * 10)
        async with mp.consumer("shipping", where="CustomerId == 1", capacity=4) as consumer:
            held = await take(consumer, 4)
            await consumer.configure(where="CustomerId >= 1")
            assert await is_dry(consumer)
            await consumer.configure(capacity=6)
            more = await take(consumer, 2)
            assert await is_dry(consumer)
            assert await ack([*held, *more]) == [1, 2, 3, 4, 5, 6]
            assert len(await take(consumer, 4)) == 4

    async def test_routes_come_and_go_and_the_others_keep_their_budget(self, mp: Milepost) -> None:
        first, second = Route("CustomerId == 1", capacity=1), Route("CustomerId == 2", capacity=1)
        await customers(mp, 1, 2, 1, 2)
        async with mp.consumer("shipping", routes=[first]) as consumer:
            [one] = await take(consumer, 1)
            await consumer.add(second)
            [two] = await take(consumer, 1)
            assert (one.position, two.position) == (1, 2)
            await consumer.remove(first)
            assert consumer.routes == (second,)
            assert (one.route, two.route) == ("CustomerId == 1", "CustomerId == 2")
            # The second is still full, though it is the only one now; what came by the first is still its own.
            assert await is_dry(consumer)
            await ack([one])
            assert await is_dry(consumer)
            await ack([two])
            assert [delivery.position for delivery in await take(consumer, 1)] == [4]

    async def test_all_routes_at_once(self, mp: Milepost) -> None:
        first, second, third = (Route(f"CustomerId == {n}", capacity=1) for n in (1, 2, 3))
        await customers(mp, 1, 2, 3, 1, 2, 3)
        async with mp.consumer("shipping", routes=[first, second]) as consumer:
            one, two = await take(consumer, 2)
            await consumer.configure(routes=[third, second])
            # The third is in the place of the first, and goes on with what that has open.
            assert await is_dry(consumer)
            await ack([one])
            assert [each.position for each in await take(consumer, 1)] == [3]
            await ack([two])
            assert [each.position for each in await take(consumer, 1)] == [5]
            with pytest.raises(ValueError, match="several routes: configure it with routes"):
                await consumer.configure(priority=1)
            with pytest.raises(ValueError, match="routes say it all"):
                await consumer.configure(routes=[first], priority=1)

    async def test_a_route_that_is_not_there_and_the_last_one(self, mp: Milepost) -> None:
        async with mp.consumer("shipping", where="CustomerId == 1") as consumer:
            with pytest.raises(ValueError, match="has no route 'CustomerId == 2'"):
                await consumer.remove(Route("CustomerId == 2"))
            with pytest.raises(ValueError, match="at least one route"):
                await consumer.remove(Route("CustomerId == 1"))

    async def test_of_one_that_stands_by(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        await customers(mp, 1, 2)
        async with make_mp() as owner, owner.consumer("shipping", capacity=0) as first:
            async with mp.consumer("shipping", where="CustomerId == 1") as second:
                await second.configure(where="CustomerId == 2")
                await first.__aexit__(None, None, None)
                assert await ack(await take(second, 1)) == [2]

    async def test_under_load_nothing_is_lost(self, mp: Milepost) -> None:
        """Routes change all the time while messages come: each goes to somebody who matches it."""
        seen: dict[int, int] = {}

        async def note(delivery: Any) -> None:
            seen[delivery.position] = delivery.message.properties["CustomerId"]
            await delivery.ack()

        async with taking(mp, "shipping", note, where="CustomerId < 2", capacity=3) as first:
            async with taking(mp, "shipping", note, where="CustomerId >= 2", capacity=3) as second:
                for turn in range(40):
                    await customers(mp, *range(4))
                    edge = turn % 3 + 1
                    await first.consumer.configure(where=f"CustomerId < {edge}", capacity=turn % 4 + 1)
                    await second.consumer.configure(where=f"CustomerId >= {edge}")
                await until(lambda: len(seen) == 160)
        assert sorted(seen) == list(range(1, 161))


async def test_many_filters_of_one_process(mp: Milepost) -> None:
    async with asyncio.TaskGroup() as group:
        ready = [asyncio.Event() for _ in range(50)]
        got: dict[int, list[int]] = {}

        async def consume(number: int) -> None:
            async with mp.consumer("shipping", where=f"CustomerId == {number}") as consumer:
                ready[number].set()
                got[number] = await ack(await take(consumer, 2))

        for number in range(50):
            group.create_task(consume(number))
        for event in ready:
            await event.wait()
        await customers(mp, *range(50), *range(50))
    assert got == {number: [number + 1, number + 51] for number in range(50)}


@pytest.mark.parametrize("word", ["a\0", "a\ud800"])
async def test_what_cannot_be_stored_is_refused(mp: Milepost, word: str) -> None:
    await mp.create_subscription("shipping")
    with pytest.raises(FilterError) as raised:
        mp.consumer("shipping", where=f'n == "{word}"')
    assert raised.value.offset == 7
    with pytest.raises(InvalidMessage):
        mp.consumer("shipping", routes=[Route(name=word)])


def test_a_filter_is_compiled_once() -> None:
    """A consumer of a server may have a thousand: compiled again, they would hold everybody up."""
    given = [Route("n == 1", capacity=100), Route("n == 2", name="second"), Route()]
    routes = ConsumerRoutes(given).named(12)
    assert [(route.name, route.capacity) for route in routes] == [("#1", 4), ("=second", 4), ("#2", 4)]
    assert [route.where for route in routes] == ["n == 1", "n == 2", None]
    assert all(route.filter is of.filter for route, of in zip(routes, given, strict=True))
