"""What a trial of a handler says of its transaction, and of what the handler raised."""

from contextlib import suppress
from typing import Any

import pytest
from psycopg.errors import SerializationFailure

from milepost import Message, Milepost, NewMessage, Transaction
from milepost.engine.declare.context import CannotAppend
from milepost.engine.operate.dry_run import DryRunResult, DryRunTransaction


async def test_an_append_that_is_refused_is_told_also_where_the_handler_hides_it(mp: Milepost) -> None:
    async with DryRunTransaction.on(mp.log.database, mp.log, None, "read committed") as rehearsal:
        with suppress(CannotAppend):
            await rehearsal.transaction.append("receipt-1", NewMessage("due"))
        assert isinstance(await rehearsal.conclude(None), CannotAppend)


async def tried(mp: Milepost) -> DryRunResult:
    """Return what came of trying the only handler on the only message."""
    await mp.append("order-1", NewMessage("placed"))
    [subscription] = mp.declared()
    trial = mp.dry_run(subscription)
    return await trial.run(await trial.choose([1]), timed=True)


@pytest.mark.parametrize("within", [False, True])
async def test_a_lost_race_is_no_attempt_of_a_transaction(mp: Milepost, within: bool) -> None:
    lost = SerializationFailure("another was faster")

    @mp.subscription("orders", category="order")
    async def handle(message: Message[Any], tx: Transaction) -> None:
        raise ExceptionGroup("several", [lost]) if within else lost

    assert (await tried(mp)).prospects[1].state == "again"


async def test_a_lost_race_elsewhere_is_an_error_like_others(mp: Milepost) -> None:
    @mp.subscription("orders", category="order")
    async def handle(message: Message[Any]) -> None:
        raise SerializationFailure("another was faster")

    assert (await tried(mp)).prospects[1].state == "retrying"


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_is_no_exception_is_told_as_well(mp: Milepost, is_async: bool) -> None:
    class Panic(BaseException):
        """Libraries written in Rust raise such."""

    if is_async:

        @mp.subscription("orders", category="order")
        async def handle(message: Message[Any]) -> None:
            raise Panic("broken")
    else:

        @mp.subscription("orders", category="order")
        def plain(message: Message[Any]) -> None:
            raise Panic("broken")

    outcome = await tried(mp)
    assert outcome.has_failed
    assert outcome.prospects[1].reason == "Panic: broken"
