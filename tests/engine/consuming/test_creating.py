"""`mp.create_subscription`: every option, what is there already, and all settings shown back."""

from datetime import UTC, datetime
from typing import Any

import pytest

from engine.consuming.taking import ack, is_dry, orders, take
from milepost import (
    AlreadyExists,
    Checkpoint,
    DeclaredInCode,
    FilterError,
    Message,
    Milepost,
    MilepostError,
    NewMessage,
    Retry,
    UnknownSubscription,
    by_correlation,
    by_function,
    by_property,
)
from support import MakeMilepost

DEFAULTS = {
    "category": None,
    "stream": None,
    "types": None,
    "where": None,
    "start": "beginning",
    "ordered_by": None,
    "window": 1000,
    "retry": {"attempts": 11, "delay": 5, "factor": 2, "max_delay": 240, "jitter": 0.1},
    "on_park": "continue",
    "tracking": "failures",
    "timeout": 30,
    "checkpoint": {"seconds": 0.2, "messages": 1000},
    "lease": 30,
    "stall_after": 1000,
    "max_waiting": 100_000,
    "keep_done": None,
    "strategy": "round_robin",
    "max_consumers": None,
    "max_unrouted": 100_000,
}
OTHERS: dict[str, Any] = {
    "category": ["order", "invoice"],
    "stream": "order-1",
    "types": ["order.*"],
    "where": "n > 5",
    "start": 0,
    "ordered_by": by_property("CustomerId"),
    "window": 50,
    "retry": Retry(attempts=3, delay=1, factor=3, max_delay=9, jitter=0),
    "on_park": "block",
    "timeout": 0.5,
    "checkpoint": Checkpoint(seconds=1, messages=10),
    "lease": 5,
    "stall_after": 20,
    "max_waiting": 30,
    "keep_done": 60,
    "strategy": "pinned",
    "max_consumers": 4,
    "max_unrouted": 40,
}
SHOWN = {
    **OTHERS,
    "category": ["invoice", "order"],
    "stream": ["order-1"],
    "ordered_by": "property CustomerId",
    "retry": {"attempts": 3, "delay": 1, "factor": 3, "max_delay": 9, "jitter": 0},
    "checkpoint": {"seconds": 1, "messages": 10},
    "tracking": "failures",
}


async def settings_of(mp: Milepost, name: str = "shipping") -> dict[str, Any] | None:
    return (await mp.manage(name).info()).settings


async def test_the_defaults_are_shown_back(mp: Milepost) -> None:
    await mp.create_subscription("shipping")
    assert await settings_of(mp) == DEFAULTS


async def test_every_option_is_shown_back(mp: Milepost) -> None:
    await mp.create_subscription("shipping", **OTHERS)
    assert await settings_of(mp) == SHOWN


@pytest.mark.shard("variants", fast=["category", "where", "retry", "strategy", "window", "keep_done"])
@pytest.mark.parametrize("option", [option for option in OTHERS if option != "start"])
async def test_each_option_can_be_changed_and_the_others_stay(mp: Milepost, option: str) -> None:
    await mp.create_subscription("shipping")
    await mp.manage("shipping").update(**{option: OTHERS[option]})
    assert await settings_of(mp) == {**DEFAULTS, option: SHOWN[option]}


async def test_one_that_is_declared_in_code_has_no_settings_here(mp: Milepost, make_mp: MakeMilepost) -> None:
    program = make_mp()

    @program.subscription("invoices", category="order")
    async def handle(message: Message[Any]) -> None: ...

    await program.run_until_idle()
    assert (await mp.manage("invoices").info()).settings is None
    with pytest.raises(DeclaredInCode, match="choose another name"):
        await mp.create_subscription("invoices")
    with pytest.raises(MilepostError, match="has handlers in a program, and takes no consumers"):
        async with mp.consumer("invoices"):
            pass


async def test_handlers_for_one_that_was_created_are_refused(mp: Milepost, make_mp: MakeMilepost) -> None:
    await mp.create_subscription("shipping")
    program = make_mp()

    @program.subscription("shipping", category="order")
    async def handle(message: Message[Any]) -> None: ...

    with pytest.raises(MilepostError, match="it was created for consumers, and cannot have handlers"):
        await program.run_until_idle()


class TestIfExists:
    async def test_update_is_the_default_and_changes_everything_to_what_is_given(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", **OTHERS)
        await mp.create_subscription("shipping", timeout=3)
        assert await settings_of(mp) == {**DEFAULTS, "timeout": 3, "start": 0}

    async def test_error(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", if_exists="error")
        with pytest.raises(AlreadyExists, match='if_exists="update" changes it'):
            await mp.create_subscription("shipping", timeout=3, if_exists="error")
        assert await settings_of(mp) == DEFAULTS

    async def test_ignore(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", if_exists="ignore")
        await mp.create_subscription("shipping", timeout=3, if_exists="ignore")
        assert await settings_of(mp) == DEFAULTS

    async def test_anything_else(self, mp: Milepost) -> None:
        with pytest.raises(ValueError, match='if_exists: "update", "error" or "ignore" is wanted'):
            await mp.create_subscription("shipping", if_exists="replace")  # type: ignore[arg-type]

    async def test_progress_stays(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        await orders(mp, 3)
        async with mp.consumer("shipping") as consumer:
            await ack(await take(consumer, 2))
        await mp.create_subscription("shipping", timeout=3)
        async with mp.consumer("shipping") as consumer:
            assert [delivery.position for delivery in await take(consumer, 1)] == [3]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"lanes": 4}, "lanes is for subscriptions with handlers"),
            ({"batch": 4}, "batch is for subscriptions with handlers"),
            ({"concurrency": 4}, "concurrency is for subscriptions with handlers"),
            ({"timeOut": 4}, "did you mean 'timeout'"),
            ({"max_consumer": 4}, "did you mean 'max_consumers'"),
        ],
    )
    async def test_options_that_there_are_not(self, mp: Milepost, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(TypeError, match=problem):
            await mp.create_subscription("shipping", **options)

    @pytest.mark.shard(
        "variants",
        fast=[
            "options0-timeout: a number of seconds, more than 0, is wanted",
            'options2-strategy: "round_robin" or "dispatch_to_single"',
            "options5-window: a whole number from 1 to 2,147,483,647 is wanted, not 2147483648",
            'options11-on_park: "block" or "continue" is wanted',
            "options12-a function cannot be stored: use by_property",
        ],
    )
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"timeout": 0}, "timeout: a number of seconds, more than 0, is wanted"),
            ({"timeout": -1}, "timeout: a number of seconds, more than 0"),
            ({"strategy": "random"}, 'strategy: "round_robin" or "dispatch_to_single"'),
            ({"max_consumers": 0}, "max_consumers: a whole number from 1 to 2,147,483,647 is wanted, not 0"),
            ({"max_unrouted": 0}, "max_unrouted: a whole number from 1 to 2,147,483,647 is wanted, not 0"),
            ({"window": 2**31}, "window: a whole number from 1 to 2,147,483,647 is wanted, not 2147483648"),
            ({"max_waiting": 10**30}, "max_waiting: a whole number from 1 to 2,147,483,647 is wanted"),
            ({"max_consumers": 10**30}, "max_consumers: a whole number from 1 to 2,147,483,647 is wanted"),
            ({"max_unrouted": 10**30}, "max_unrouted: a whole number from 1 to 2,147,483,647 is wanted"),
            ({"stall_after": 10**30}, "stall_after: a whole number from 1 to 2,147,483,647 is wanted"),
            ({"timeout": float("inf")}, "timeout: at most 3,162,240,000 seconds, a hundred years, are wanted"),
            ({"on_park": "stop"}, 'on_park: "block" or "continue" is wanted'),
            ({"ordered_by": by_function(lambda message: 1)}, "a function cannot be stored: use by_property"),
            ({"retry": Retry(rules={ValueError: Retry.never})}, "rules for exceptions are for handlers"),
        ],
    )
    async def test_values_that_cannot_be(self, mp: Milepost, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(ValueError, match=problem):
            await mp.create_subscription("shipping", **options)
        with pytest.raises(UnknownSubscription):
            await mp.manage("shipping").info()

    async def test_a_filter_that_is_none_and_the_old_one_stays_in_force(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", where="n >= 2")
        with pytest.raises(FilterError, match="n >"):
            await mp.manage("shipping").update(where="n > ")
        with pytest.raises(FilterError, match="n >"):
            await mp.create_subscription("shipping", where="n > ")
        await orders(mp, 4)
        async with mp.consumer("shipping") as consumer:
            assert [delivery.position for delivery in await take(consumer, 2)] == [3, 4]

    async def test_another_tracking(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        with pytest.raises(ValueError, match="tracking: .*create another subscription"):
            await mp.manage("shipping").update(tracking="all")

    async def test_another_start(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        with pytest.raises(ValueError, match="start: it has begun already; move it instead, to any place"):
            await mp.manage("shipping").update(start="now")

    async def test_nothing_to_change(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping")
        with pytest.raises(ValueError, match="nothing to update"):
            await mp.manage("shipping").update()

    async def test_no_such_subscription(self, mp: Milepost) -> None:
        with pytest.raises(UnknownSubscription, match=r"create it with mp\.create_subscription"):
            async with mp.consumer("shipping"):
                pass
        with pytest.raises(UnknownSubscription):
            await mp.manage("shipping").update(timeout=3)
        await mp.create_subscription("shipping")
        with pytest.raises(UnknownSubscription, match="did you mean 'default/shipping'"):
            async with mp.consumer("shiping"):
                pass

    async def test_consumers_of_one_for_pulling(self, mp: Milepost) -> None:
        await mp.create_subscription("emails", tracking="all")
        with pytest.raises(MilepostError, match=r'take from it with mp\.pull\("emails"\)'):
            async with mp.consumer("emails"):
                pass


class TestSelection:
    """What a subscription selects, and where it begins."""

    async def test_category_is_exact(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", category="order")
        await mp.append("orderline-1", NewMessage("placed"))
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            assert [delivery.position for delivery in await take(consumer, 1)] == [2]
            assert await is_dry(consumer)

    async def test_streams_types_and_a_filter_together(self, mp: Milepost) -> None:
        await mp.create_subscription("shipping", stream=["order-1", "order-2"], types="order.>", where="n >= 11")
        await orders(mp, 15)
        await mp.append("order-1", NewMessage("payment.received", properties={"n": 50}))
        async with mp.consumer("shipping") as consumer:
            found = [delivery.message for delivery in await take(consumer, 2)]
            assert [(message.stream, message.data["n"]) for message in found] == [("order-1", 11), ("order-2", 12)]
            assert await is_dry(consumer)

    async def test_from_now_means_now(self, mp: Milepost) -> None:
        await orders(mp, 3)
        await mp.create_subscription("shipping", start="now")
        await orders(mp, 1)
        async with mp.consumer("shipping") as consumer:
            assert [delivery.position for delivery in await take(consumer, 1)] == [4]

    async def test_from_a_time_and_a_position(self, mp: Milepost) -> None:
        await orders(mp, 3)
        between = datetime.now(UTC)
        await orders(mp, 2)
        await mp.create_subscription("timely", start=between)
        await mp.create_subscription("placed", start=1)
        async with mp.consumer("timely") as timely, mp.consumer("placed") as placed:
            assert [delivery.position for delivery in await take(timely, 2)] == [4, 5]
            assert [delivery.position for delivery in await take(placed, 4)] == [2, 3, 4, 5]
        assert (await settings_of(mp, "timely") or {})["start"] == between.isoformat()

    async def test_in_another_group(self, mp: Milepost, make_mp: MakeMilepost) -> None:
        async with make_mp(group="billing") as billing:
            await billing.create_subscription("shipping", category="order", ordered_by=by_correlation)
        await orders(mp, 1)
        with pytest.raises(UnknownSubscription):
            async with mp.consumer("shipping"):
                pass
        async with mp.consumer("billing/shipping") as consumer:
            assert len(await take(consumer, 1)) == 1

    async def test_a_group_may_be_named(self, mp: Milepost) -> None:
        created = await mp.create_subscription("billing/shipping", timeout=5)
        assert (created.group, created.name) == ("billing", "shipping")
        await created.update(timeout=6)
        assert ((await created.info()).settings or {})["timeout"] == 6
        assert [(info.group, info.name) for info in await mp.subscriptions()] == [("billing", "shipping")]

    @pytest.mark.parametrize("name", ["", "billing/", "/", "a/b/c", "bil\x00ling/shipping", "x" * 2000 + "/a"])
    async def test_names_that_cannot_be(self, mp: Milepost, name: Any) -> None:
        with pytest.raises(ValueError, match="name"):
            await mp.create_subscription(name)
        assert await mp.subscriptions() == []
