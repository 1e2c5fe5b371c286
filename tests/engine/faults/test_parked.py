"""A parked message waits for a person, whatever happens meanwhile."""

import asyncio
from collections import defaultdict
from typing import Any

from engine.faults.book import first_occurrences
from engine.faults.crew import until
from milepost import Message, Milepost, NewMessage, Park
from patience import within
from support import MakeMilepost, qualified

Seen = dict[str, list[int]]


async def pass_a_day(mp: Milepost) -> None:
    """Moves the clock that decides."""
    later = (
        "create or replace function {}.clock() returns timestamptz language sql volatile parallel safe "
        "as $$ select clock_timestamp() + interval '1 day' $$"
    )
    await mp.log.database.execute(qualified(later, mp), {})


async def states(mp: Milepost) -> list[tuple[int, str]]:
    rows = await mp.log.database.execute(qualified('select "position", state from {}.deliveries', mp), {})
    return sorted((position, state) for position, state in rows)


async def cursor(mp: Milepost) -> int:
    """How far the lane is written."""
    rows = await mp.log.database.execute(qualified('select max("position") from {}.cursors', mp), {})
    return int(rows[0][0])


def program(make_mp: MakeMilepost, seen: Seen) -> Milepost:
    """A program that parks what is odd; in one lane, so that what came later was looked at later."""
    mp = make_mp()

    @mp.subscription("lines", category="order", lanes=1, lease=15)
    async def handle(message: Message[Any]) -> None:
        seen[message.stream].append(message.version)
        if message.type == "odd":
            raise Park("odd")

    return mp


async def append_one_to_each(mp: Milepost, seen: Seen) -> None:
    """One more of the key that is held, and one of its neighbour, which is handled; that is written."""
    await mp.append("order-1", NewMessage("even"))
    appended = await mp.append("order-2", NewMessage("even"))
    await until(lambda: appended.version in seen["order-2"], 30)
    async with within(30, lambda: cursor(mp)):
        while await cursor(mp) < appended.position:
            await asyncio.sleep(0.02)


async def test_a_parked_message_does_not_run_again_by_itself(mp: Milepost, make_mp: MakeMilepost) -> None:
    seen: Seen = defaultdict(list)
    first, second = program(make_mp, seen), program(make_mp, seen)
    await mp.append("order-1", NewMessage("odd"))
    async with first.running():
        # A feed that sleeps is woken by marks of the database's time, which the test moves.
        first.log.feed.poll = 0.2
        await append_one_to_each(mp, seen)
        await pass_a_day(mp)
        await append_one_to_each(mp, seen)
    async with second.running():
        await append_one_to_each(mp, seen)
    assert seen["order-1"] == [1]
    # A day in which nobody seemed to beat may cost the lane, and what was not written yet comes again.
    assert first_occurrences(seen["order-2"]) == [1, 2, 3]
    assert (await states(mp))[0] == (1, "parked")


async def test_nothing_is_left_to_do_behind_a_parked_message(mp: Milepost, make_mp: MakeMilepost) -> None:
    seen: Seen = defaultdict(list)
    await mp.append("order-1", NewMessage("odd"))
    await program(make_mp, seen).run_until_idle()
    await mp.append("order-1", NewMessage("even"))
    async with asyncio.timeout(40):
        assert (await program(make_mp, seen).run_until_idle())["lines"].handled == 0
    assert seen == {"order-1": [1]}
    assert await states(mp) == [(1, "parked"), (2, "waiting")]


async def test_what_comes_behind_a_parked_message_gets_its_row_soon(mp: Milepost, make_mp: MakeMilepost) -> None:
    """Also when no other message of the lane is handled: a person who looks sees that it waits."""
    seen: Seen = defaultdict(list)
    await mp.append("order-1", NewMessage("odd"))
    await program(make_mp, seen).run_until_idle()
    async with program(make_mp, seen).running(), within(40, lambda: states(mp)):
        await mp.append("order-1", NewMessage("even"))
        while len(await states(mp)) < 2:
            await asyncio.sleep(0.05)
    assert await states(mp) == [(1, "parked"), (2, "waiting")]
