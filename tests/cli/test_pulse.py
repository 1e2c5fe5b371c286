"""What a program says of itself, where it has consumers beside its handlers."""

import asyncio
from typing import Any

import pytest

from engine.consuming.taking import ack, orders, take, until
from milepost import Message, Milepost
from milepost.cli.run import reporter
from milepost.cli.run.reporter import HealthReporter
from milepost.cli.run.reports import ProcessMeasurement, ProcessReport
from milepost.engine.observe.counters import SubscriptionCounters
from support import MakeMilepost


class Told(list[ProcessReport | ProcessMeasurement]):
    """What it said."""

    async def obstacle(self) -> str | None:
        """Why it is not ready, as it says from now on."""
        self.clear()
        async with asyncio.timeout(60):
            while True:
                for each in self:
                    if isinstance(each, ProcessReport):
                        return each.obstacle
                await asyncio.sleep(0.005)

    def counted(self) -> dict[str, int]:
        """How many messages were handled of each subscription."""
        return {each.subscription: each.handled for each in self if isinstance(each, SubscriptionCounters)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "REPORT_SECONDS", 0.02)


def declare(mp: Milepost) -> None:
    @mp.subscription("invoices", category="order")
    async def handle(message: Message[Any]) -> None: ...


async def test_consumers_do_not_make_a_program_ready(mp: Milepost) -> None:
    declare(mp)
    told = Told()
    await mp.create_subscription("shipping")
    async with HealthReporter(mp, told.append).reporting(), mp.consumer("shipping"):
        assert await told.obstacle() is not None
        async with mp.running():
            assert await told.obstacle() is None
        assert await told.obstacle() is not None


async def test_what_consumers_do_is_counted(make_mp: MakeMilepost) -> None:
    async with make_mp(group="sales") as sales, make_mp(group="stock") as stock:
        declare(sales)
        told = Told()
        await sales.create_subscription("letters")
        await stock.create_subscription("shipping")
        await orders(sales, 3)
        async with HealthReporter(sales, told.append).reporting():
            for address in ("letters", "stock/shipping"):
                async with sales.consumer(address) as consumer:
                    await ack(await take(consumer, 3))
            await told.obstacle()
            # A report has one group, the program's own.
            await until(lambda: told.counted() == {"letters": 3})
