"""What happens when a program declares something else, where two processes are of no use to see it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from milepost import Context, Message, Milepost, NewMessage, Park
from milepost.dispatch import AttemptTally, Cursor, Exchange, ExchangeWrite
from milepost.engine.handlers import registrar
from milepost.engine.lanes import message_loader
from milepost.engine.lanes.heartbeat import Heartbeat
from milepost.engine.observe.events import DefinitionChanged, LaneLost, LaneTaken
from milepost.progress.protocol import LaneShare, RowLocation, SubscriptionDefinition
from patience import until
from support import Connection, MakeMilepost, qualified


def shop(mp: Milepost, told: list[str] | None = None, **options: Any) -> Milepost:
    @mp.subscription("orders", category="s", **{"lanes": 2, **options})
    async def handle(message: Message[Any], context: Context) -> None:
        if message.type == "odd":
            raise Park("odd")

    if told is not None:

        @mp.on_event
        def hear(event: DefinitionChanged) -> None:
            told.append(event.change)

    return mp


async def test_a_change_is_told_when_it_is_in_force(make_mp: MakeMilepost) -> None:
    told: list[str] = []
    async with shop(make_mp()).running(grace=5):
        async with shop(make_mp(), told, lanes=3, where="n > 1").running(grace=5), asyncio.timeout(40):
            while not told:
                await asyncio.sleep(0.02)
    assert len(told) == 1
    assert told[0].startswith(
        "filter changed: it selected everything and now selects n > 1; lanes changed from 2 to 3"
    )


async def test_declaring_and_a_transaction_that_wait_for_each_other(mp: Milepost, database_url: str) -> None:
    """It fences a lane that a transaction holds, which then counts a failure: it is ended, and tries again."""
    progress = mp.services.progress
    await progress.open()
    before = SubscriptionDefinition(group="g", name="s", lanes=1, selects="a", orders="stream", start=Cursor(0))
    [opened] = await progress.declare([before])
    [held] = await progress.take(opened.id, [0])
    write: Exchange[Any] = Exchange(0.0, ExchangeWrite(Cursor(5), (), AttemptTally(1)), None)
    count = qualified("update {}.subscriptions set streak = 1", mp)
    async with await Connection.connect(database_url) as connection:
        await connection.execute("set deadlock_timeout = '1min'")
        await progress.exchange(held, write, stall_after=10, on_park="block", connection=connection)
        after = SubscriptionDefinition(group="g", name="s", lanes=1, selects="b", orders="stream", start=Cursor(0))
        changing = asyncio.create_task(progress.declare([after]))
        await until_waiting(mp)
        await connection.execute(count.encode())
        await connection.commit()
    [changed] = await asyncio.wait_for(changing, 20)
    assert changed.number == 2
    assert changed.changed == "selection changed: it selected a and now selects b, from position 5 on"


async def until_waiting(mp: Milepost) -> None:
    """Until somebody waits for a lock in the test's schema."""
    schema = mp.settings["schema"].value
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like %(query)s"
    async with asyncio.timeout(40):
        while (await mp.log.database.execute(waiting, {"query": f"%{schema}%declare%"}))[0][0] == 0:
            await asyncio.sleep(0.01)


async def test_nothing_is_read_of_lanes_that_are_to_be_let_go(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or they would leave the position that they were brought to, and go on like that while messages come."""
    seen: dict[str, list[int]] = {"orders": [], "others": []}
    program = make_mp()
    for name in seen:

        @program.subscription(name, category="s", lanes=2)
        async def handle(message: Message[Any], context: Context) -> None:
            seen[context.subscription].append(message.position)

    caplog.set_level("INFO", "milepost")
    given, balance, stands_still = asyncio.Event(), Heartbeat.balance, "orders: stands still: test"

    async def later(*words: Any) -> dict[int, LaneShare]:
        # A round that began before the barrier was set goes through, or the barrier would never be noticed.
        if stands_still in caplog.text:
            await given.wait()
        return await balance(*words)

    async with program.running(grace=5):
        await program.append("s-1", NewMessage("a"))
        await until(lambda: seen == {"orders": [1], "others": [1]}, 40)
        monkeypatch.setattr(Heartbeat, "balance", later)
        stands = (
            "select {0}.set_barrier(id, 'test', null, '1 minute') from {0}.subscriptions where name = 'orders'"
        )
        await program.log.database.execute(qualified(stands, program), {})
        await until(lambda: stands_still in caplog.text, 40)
        await program.append("s-1", NewMessage("a"))
        await until(lambda: seen["others"] == [1, 2], 40)
        given.set()
    assert seen["orders"] == [1]


async def test_a_barrier_stays_up_however_many_rows_there_are(
    make_mp: MakeMilepost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get their new keys some at a time, which may take longer than a barrier stands by itself."""
    monkeypatch.setattr(registrar, "BARRIER_RENEW_SECONDS", -1.0)
    async with shop(make_mp(), on_park="continue") as old:
        await old.append_many({f"s-{n}": [NewMessage("odd")] for n in range(50)})
        await old.run_until_idle()
    expire = qualified("update {}.subscriptions set barrier_until = barrier_until - interval '4 seconds'", old)
    places = message_loader.RowPlacer.__call__

    async def take_long(self: message_loader.RowPlacer, positions: Sequence[int]) -> list[RowLocation]:
        await new.log.database.execute(expire, {})
        return await places(self, positions)

    monkeypatch.setattr("milepost.progress.postgres.progress.REKEY_PAGE_ROWS", 10)
    monkeypatch.setattr(message_loader.RowPlacer, "__call__", take_long)
    async with shop(make_mp(), on_park="continue", lanes=5) as new:
        await new.run_until_idle()
        info = await new.manage("orders").info()
    assert (len(info.lanes), info.parked) == (5, 50)


async def test_a_program_that_has_both_names_has_two_subscriptions(make_mp: MakeMilepost) -> None:
    def named(mp: Milepost, **names: str | None) -> Milepost:
        for name, before in names.items():

            @mp.subscription(name, category="s", lanes=1, renamed_from=before)
            async def handle(message: Message[Any]) -> None: ...

        return mp

    async with named(make_mp(), old=None) as first:
        await first.append("s-1", NewMessage("a"))
        await first.run_until_idle()
    for _ in range(2):
        async with named(make_mp(), new="old", old=None) as second:
            await second.run_until_idle()
            found = {info.name: info.lag.positions for info in await second.subscriptions()}
    assert found == {"new": 0, "old": 0}


async def test_lanes_that_go_to_a_newer_version_are_no_warning(
    make_mp: MakeMilepost, caplog: pytest.LogCaptureFixture
) -> None:
    """The old process says in one line that it waits, and not of each lane that it lost it."""
    old, new = make_mp(), make_mp()
    lost: list[int] = []
    taken = asyncio.Event()

    @old.on_event
    def note(event: LaneLost) -> None:
        lost.append(event.lane)

    @new.on_event
    def end(event: LaneTaken) -> None:
        taken.set()

    for program, where in ((old, "amount > 1"), (new, "amount > 2")):

        @program.subscription("orders", category="order", where=where, lanes=4)
        async def handle(message: Message[Any]) -> None: ...

    caplog.set_level("INFO", "milepost")
    async with old, new:
        await old.append("order-1", NewMessage("placed", properties={"amount": 3}))
        await old.run_until_idle()
        async with old.running(), new.running():
            await until(lambda: "waits until a newer program has ended" in caplog.text, 40)
            async with asyncio.timeout(30):
                await taken.wait()
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "waits until a newer program has ended" in warning
    assert len(lost) == len(set(lost))
