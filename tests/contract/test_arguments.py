"""Values that mean nothing are refused in words, and nothing is done: by the library and over the network."""

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from contract.both import Both, orders
from milepost import FilterError, InvalidMessage, NewMessage, Retry, Route, UnknownSubscription
from milepost.dispatch import State

NO_WAITS: list[tuple[Any, str]] = [
    (math.nan, "a number of seconds, at least 0, is wanted, not nan"),
    (-1, "a number of seconds, at least 0, is wanted, not -1"),
    ("5", "a number of seconds, at least 0, is wanted, not '5'"),
    (math.inf, "a hundred years, are wanted, not inf"),
    (1e300, "a hundred years, are wanted, not 1e+300"),
]
A_CENTURY = 100 * 366 * 86_400


async def test_a_retry_at_a_time_that_there_is_not(both: Both) -> None:
    await both.create_subscription("emails", retry=Retry(delay=60))
    await orders(both, 2)
    async with both.consumer("emails") as consumer:
        taken: Any = consumer
        delivery, other = [await anext(taken) for _ in range(2)]
        for after, problem in NO_WAITS:
            with pytest.raises(ValueError, match=re.escape(problem)):
                await delivery.retry(after=after)
            with pytest.raises(ValueError, match=re.escape(problem)):
                await consumer.settle(ack=[other], retry=[delivery], after=after)
        # Neither of them was settled by what was refused.
        await delivery.retry(after=A_CENTURY, reason="not in my time")
        settled = await consumer.settle(ack=[other])
        assert settled.moved == (other.position,)
        assert not settled.refused
    found = [each async for each in both.manage("emails").deliveries()]
    assert [(each.position, each.state) for each in found] == [(delivery.position, State.RETRYING)]


async def test_a_pulled_delivery_to_come_again_at_a_time_that_there_is_not(both: Both) -> None:
    await both.create_subscription("emails", tracking="all")
    await orders(both, 1)
    [task] = await both.pull("emails")
    for after, problem in NO_WAITS:
        with pytest.raises(ValueError, match=re.escape(problem)):
            await both.settle(retry=task, after=after)
    assert (await both.settle(retry=task, after=A_CENTURY)).moved == (task,)


async def test_a_delivery_is_extended_by_some_time(both: Both) -> None:
    await both.create_subscription("emails")
    await orders(both, 1)
    async with both.consumer("emails") as consumer:
        delivery: Any = await anext(consumer)
        for seconds in (0, -1, math.nan, math.inf, 1e300, "5"):
            with pytest.raises(ValueError, match="seconds: .* wanted, not"):
                await delivery.extend(seconds)
        await delivery.extend(A_CENTURY)
        await delivery.ack()


@pytest.mark.parametrize("name", [None, 5, b"emails"])
async def test_a_subscription_is_named_by_a_text(both: Both, name: Any) -> None:
    async def manage(name: Any) -> None:
        both.manage(name)

    async def consumer(name: Any) -> None:
        both.consumer(name)

    calls: tuple[Callable[[Any], Awaitable[object]], ...] = (both.create_subscription, both.pull, manage, consumer)
    for call in calls:
        with pytest.raises(ValueError, match=f"subscription: a name or group/name is wanted, not {name!r}"):
            await call(name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a\0b", "a NUL character"),
        ("g\0/a", "a NUL character"),
        ("\ud800", "a lone surrogate"),
        ("", "not ''"),
        ("g/", "not 'g/'"),
    ],
)
async def test_no_subscription_has_a_name_that_cannot_be_stored(both: Both, name: str, problem: str) -> None:
    async def manage(name: str) -> None:
        both.manage(name)

    async def consumer(name: str) -> None:
        both.consumer(name)

    for call in (both.create_subscription, both.pull, manage, consumer):
        with pytest.raises(ValueError, match=f"^subscription: a name or group/name is wanted.*{problem}"):
            await call(name)


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
async def test_a_filter_and_a_choice_that_cannot_be_stored(both: Both, text: str) -> None:
    emails = await both.create_subscription("emails")
    where = f'a == "{text}"'
    with pytest.raises(FilterError, match="no message has .* in a property|expected a character"):
        await both.create_subscription("others", where=where)
    with pytest.raises(FilterError, match="no message has .* in a property|expected a character"):
        await emails.update(where=where)
    for asked in ({"group": text}, {"subscription": text}):
        with pytest.raises(InvalidMessage, match=f"^{next(iter(asked))}: .* has a (NUL character|lone surrogate)"):
            await both.trace("order-1", **asked)  # type: ignore[arg-type]
    for choice in ({"key": text}, {"reason": text}):
        problem = f"^{next(iter(choice))}: .* has a (NUL character|lone surrogate)"
        with pytest.raises(InvalidMessage, match=problem):
            await anext(emails.deliveries(**choice))  # type: ignore[arg-type]
        for decide in (emails.retry, emails.skip):
            with pytest.raises(InvalidMessage, match=problem):
                await decide(all=True, **choice)  # type: ignore[arg-type]


@pytest.mark.shard(
    "variants", fast=["library-1.5-limit", "library-True-after", "client--1-limit", "client-nan-before"]
)
@pytest.mark.parametrize("field", ["limit", "after", "before"])
@pytest.mark.parametrize("value", [1.5, "1", True, -1, math.nan])
async def test_a_read_is_bounded_by_whole_numbers(both: Both, field: str, value: Any) -> None:
    words = re.escape(f"{field}: a whole number from 0 on is wanted, not {value!r}")
    with pytest.raises(InvalidMessage, match=words) as refused:
        [message async for message in both.read(**{field: value})]
    assert refused.value.field == field


async def test_what_else_a_reader_cannot_mean(both: Both) -> None:
    texts: Any = "yesterday"
    number: Any = 5
    calls: list[tuple[str, AsyncIterator[Any]]] = [
        ("after_version", both.read("order-1", after_version=1.5)),  # type: ignore[arg-type]
        ("since", both.read(since=texts)),
        ("category", both.read(category=number)),
        ("stream", both.read(number)),
        ("after", both.follow(after=texts)),
    ]
    for field, messages in calls:
        with pytest.raises(InvalidMessage, match=f"^{field}: .* wanted") as refused:
            await anext(messages)
        assert refused.value.field == field
    with pytest.raises(TypeError, match="a filter is a text, such as .*, not 5"):
        await anext(both.read(where=number))
    for target, limit, field in ((None, 1, "target"), ("order-1", 1.5, "limit")):
        wrong: Any = target, limit
        with pytest.raises(InvalidMessage, match=f"^{field}: ") as refused:
            await both.trace(wrong[0], limit=wrong[1])
        assert refused.value.field == field


async def test_a_route_is_removed_by_itself(both: Both) -> None:
    await both.create_subscription("emails")
    one, two = Route("n == 1", name="one"), Route("n == 2")
    name: Any = "one"
    async with both.consumer("emails", routes=[one, two]) as consumer:
        for change in (consumer.remove, consumer.add):
            with pytest.raises(ValueError, match=re.escape("Route(…) is wanted")):
                await change(name)
        with pytest.raises(ValueError, match=re.escape("one of consumer.routes, not 'one'")):
            await consumer.remove(name)
        with pytest.raises(ValueError, match=re.escape("a list of Route(…) is wanted, not Route(")):
            await consumer.configure(routes=one)  # type: ignore[arg-type]
        await consumer.remove(consumer.routes[0])
        assert consumer.routes == (two,)


async def test_what_is_settled_is_a_delivery(both: Both) -> None:
    await both.create_subscription("emails")
    await orders(both, 1)
    async with both.consumer("emails") as consumer:
        delivery: Any = await anext(consumer)
        with pytest.raises(ValueError, match="ack: a list of objects of .*Delivery is wanted, not Delivery"):
            await consumer.settle(ack=delivery)
        with pytest.raises(ValueError, match="retry: a list of objects of (Client)?Delivery is wanted, not 5"):
            await consumer.settle(ack=[delivery], retry=[5])  # type: ignore[list-item]
        with pytest.raises(ValueError, match=r"limit: a whole number of at least 1 is wanted, not 1\.5"):
            await consumer.next_batch(1.5)  # type: ignore[arg-type]
        await delivery.ack()
    with pytest.raises(TypeError, match="a delivery or its token is wanted, or several, not 5"):
        await both.settle(ack=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["order.*", "order.>", "a>b", "*"])
async def test_a_type_that_would_be_a_pattern(both: Both, name: str) -> None:
    words = re.escape(f"type: {name!r} has * or >, which stand for other types where types are selected")
    with pytest.raises(InvalidMessage, match=words) as refused:
        await both.append("order-1", NewMessage(name))
    assert refused.value.field == "type"
    with pytest.raises(InvalidMessage, match=words):
        await both.append_many({"order-1": NewMessage(name)})
    with pytest.raises(InvalidMessage, match="messages: a dict of streams is wanted, not list"):
        await both.append_many([("order-1", NewMessage("a"))])  # type: ignore[arg-type]
    assert await both.last("order-1") == 0


async def test_an_unknown_subscription_is_answered_with_the_one_that_is_meant(both: Both) -> None:
    await both.create_subscription("emails", tracking="all")
    await both.create_subscription("order-management/shipping")
    for asked, meant in (
        ("emalis", "default/emails"),
        ("order-management/emails", "default/emails"),
        ("shipping", "order-management/shipping"),
        ("shiping", "order-management/shipping"),
    ):
        words = f"there is no subscription '.*/{asked.rpartition('/')[2]}': did you mean '{meant}'"
        with pytest.raises(UnknownSubscription, match=words):
            await both.pull(asked)
        with pytest.raises(UnknownSubscription, match=words):
            await both.manage(asked).info()
        with pytest.raises(UnknownSubscription, match=words):
            async with both.consumer(asked):
                pass
    with pytest.raises(UnknownSubscription, match="did you mean 'order-management/shipping'"):
        await both.trace("order-1", subscription="shiping")
